"""Checks on the arguments of step-by-step decoding and generation (GEN-1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specification.arrays import Array
from specification.caches import BlockCache, Cache
from specification.checks.arguments import check_number, described, natural, refuse, shape_of, structure
from specification.checks.shapes import Float, Integer, check_array, check_shapes, declare, match
from specification.configuration import Configuration
from specification.dtypes import dtype_name
from specification.parameters import (
    Decoder,
    DecoderBlock,
    LanguageModel,
    LatentAttention,
    Linear,
    MultiHeadAttention,
    Transformer,
)

__all__ = [
    "beams", "choice", "decode_step", "empty_cache", "generation", "held", "no_look_ahead", "sampling", "tokens",
    "uniform_steps",
]  # fmt: skip

# --- models and what they are given -----------------------------------------------------------------------------------


def held(parameters: Any, configuration: Configuration | None) -> tuple[Any, Configuration]:
    """Return parameters and configuration, which a loaded model has both, and a structure of arrays is given both."""
    own = getattr(parameters, "configuration", None)
    if own is not None:
        if configuration is not None:
            refuse("configuration", "be None beside a model, which has its own", "another", TypeError)
        return parameters.structure(), own
    if configuration is None:
        refuse("configuration", f"be given beside {described(parameters)}, which is no model", None, TypeError)
    return parameters, configuration


def generator(parameters: object) -> int:
    """Check that a model can generate, by a decoder that embeds tokens and gives logits; return its vocabulary."""
    if not isinstance(parameters, LanguageModel | Transformer):
        why = ", which has no output layer; load_pretrained leaves it out where architectures names no language model"
        got = f"{described(parameters)}{why if isinstance(parameters, Decoder) else ''}"
        refuse("parameters", "be a LanguageModel or a Transformer", got, TypeError)
    if parameters.decoder.embedding is None:
        refuse("parameters", "have an embedding of tokens, for generation", "none")
    if parameters.output is None:
        refuse("parameters", "have an output layer, for generation", "none")
    return check_array("output.weight", parameters.output.weight, "Shaped", "E N")["N"]


def source(parameters: LanguageModel | Transformer, batch: int, given: Array | None) -> None:
    """Check that there is a source exactly where there is an encoder."""
    if isinstance(parameters, LanguageModel):
        if given is not None:
            refuse("source", "be None for a LanguageModel", described(given))
    elif given is None:
        refuse("source", "be given for a Transformer", None)
    elif shape_of("source", given)[:1] != (batch,):
        refuse("source", f"have the batch size {batch} of the tokens", f"shape {list(given.shape)}")


def tokens(name: str, ids: Array) -> tuple[int, int]:
    """Check token ids, and return the batch size and the number of positions, at least one."""
    sizes = check_array(name, ids, "Integer", "B T")
    if sizes["T"] == 0:
        refuse(name, "have at least one position", list(ids.shape))
    return sizes["B"], sizes["T"]


def empty_cache(parameters: LanguageModel | Transformer, batch: int, capacity: int, given: Array | None) -> None:
    """Check the arguments of empty_cache: a batch size, the number of positions with room, and a source (GEN-1)."""
    generator(parameters)
    natural("capacity", capacity)
    source(parameters, natural("batch", batch), given)


def decode_step(parameters: LanguageModel | Transformer, new: Array, cache: Cache, length: int | None) -> None:
    """Check a model, new tokens, a cache, and how many of its positions are taken: None cannot be read (GEN-1)."""
    generator(parameters)
    rows, capacity = cache.real.shape
    batch, count = tokens("tokens", new)
    if batch != rows:
        refuse("tokens", f"have the cache's batch size {rows}", list(new.shape))
    if len(parameters.decoder.blocks) != len(cache.blocks):
        refuse("the cache", f"have {len(parameters.decoder.blocks)} blocks like the decoder", len(cache.blocks))
    for i, (block, kept) in enumerate(zip(parameters.decoder.blocks, cache.blocks, strict=True)):
        block_cache(f"blocks[{i}]", block, kept, rows, capacity)
    taken = 0 if length is None else length
    if taken < 0:
        refuse("the cache's length", "not be negative", taken)
    if taken + count > capacity:
        refuse("tokens", f"fit in the cache, where {taken} of {capacity} positions are taken", f"{count} positions")


KEPT = declare({"keys": 'Shaped[Array, "B G T D"]', "values": 'Shaped[Array, "B G T V"]'})
KEPT_LATENTS = declare({"keys": 'Shaped[Array, "B 1 T C"]', "values": 'Shaped[Array, "B 1 T R"]'})
KEPT_MEMORY = declare({"memory_keys": 'Shaped[Array, "B G S D"]', "memory_values": 'Shaped[Array, "B G S V"]'})
WEIGHT = declare({"weight": 'Shaped[Array, "I O"]'})


def block_cache(name: str, block: DecoderBlock, kept: BlockCache, batch: int, capacity: int) -> None:
    """Check what a cache keeps of one block: its columns, in all heads together, are those of the block (GEN-1)."""
    structure(name, block, DecoderBlock)
    structure(f"the cache's {name}", kept, BlockCache)
    arrays, prefix = kept._asdict(), f"the cache's {name}."
    for attention, declaration in ((block.self_attention, KEPT), (block.cross_attention, KEPT_MEMORY)):
        if attention is None:
            continue
        if isinstance(attention, LatentAttention):
            (width,), (columns,) = attention.key_value_norm.weight.shape, attention.key_value_down.weight.shape[1:]
            match(KEPT_LATENTS, arrays, prefix=prefix, B=batch, T=capacity, C=width, R=columns - width)
            continue
        structure(name, attention, MultiHeadAttention)
        sizes = match(declaration, arrays, prefix=prefix, B=batch, T=capacity)
        for argument, projection in zip(declaration, (attention.key, attention.value), strict=True):
            heads = [projection] if isinstance(projection, Linear) else projection
            columns = sum(match(WEIGHT, head._asdict())["O"] for head in heads)
            shape = list(arrays[argument.name].shape)
            if sizes["G"] * shape[3] != columns:
                refuse(prefix + argument.name, f"have {columns} columns in all heads", shape)


def no_look_ahead(what: str) -> None:
    """Refuse what a cache cannot give, because it depends on later tokens (GEN-1); empty is nothing."""
    if what:
        raise ValueError(f"no cache can hold {what}: that needs the full forward pass")


def generation(
    parameters: LanguageModel | Transformer,
    prompt: Array,
    steps: int,
    configuration: Configuration,
    given: Array | None,
    end: int | None,
) -> int:
    """Check the arguments of generation, `given` as its source, and return the size of the vocabulary (GEN-1)."""
    vocabulary = generator(parameters)
    batch, length = tokens("prompt", prompt)
    natural("steps", steps)
    source(parameters, batch, given)
    if vocabulary - 1 > int(np.iinfo(dtype_name(prompt)).max):
        refuse("prompt", f"have a dtype that holds ids up to {vocabulary - 1}", dtype_name(prompt), TypeError)
    if end is not None and natural("end", end) >= vocabulary:
        refuse("end", f"lie in [0, {vocabulary})", end)
    embedding = parameters.decoder.embedding
    table = None if embedding is None else embedding.positions
    if configuration.positions == "learned" and table is not None and steps > 0:
        rows, needed = table.shape[0], length + steps - 1
        if needed > rows:
            refuse("embedding.positions", f"have {needed} rows for {steps} tokens after a prompt of {length}", rows)
    return vocabulary


# --- choosing ---------------------------------------------------------------------------------------------------------


def sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Check how a token is drawn: top_k and top_p may be None for all tokens (GEN-1)."""
    check_number("temperature", temperature, lambda number: 0 < number < math.inf, "be positive and finite")
    if top_k is not None:
        natural("top_k", top_k, least=1)
    if top_p is not None:
        check_number("top_p", top_p, lambda share: 0 < share <= 1, "be above 0 and at most 1")


@check_shapes
def choice(logits: Float[Array, "B N"], uniforms: Array) -> None:
    """Check the logits of one position, and a random number for each batch element (GEN-1)."""
    batch, vocabulary = logits.shape
    if vocabulary == 0:
        refuse("logits", "be those of at least one token", list(logits.shape))
    check_array("uniforms", uniforms, "Float", "B", B=batch)  # in any dtype, not only that of logits


@check_shapes
def uniform_steps(prompt: Integer[Array, "B P"], uniforms: Float[Array, "B steps"]) -> int:
    """Check random numbers for each batch element, and return for how many steps there are some (GEN-1)."""
    return uniforms.shape[1]


def beams(count: int, length_penalty: float) -> None:
    """Check the arguments of beam search (GEN-1)."""
    natural("beams", count, least=1)
    check_number("length_penalty", length_penalty, lambda number: abs(number) < math.inf, "be finite")
