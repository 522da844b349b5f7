"""Checks on the arguments of step-by-step decoding and generation (GEN-1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from specification.caches import BlockCache, Cache
from specification.checks.arguments import (
    described,
    floating,
    integer,
    natural,
    ranked,
    real_number,
    shape_of,
    structure,
)
from specification.configuration import Configuration
from specification.dtypes import dtype_name
from specification.parameters import Decoder, DecoderBlock, LanguageModel, Linear, MultiHeadAttention, Transformer

__all__ = [
    "beams",
    "choice",
    "decode_step",
    "empty_cache",
    "generation",
    "held",
    "no_look_ahead",
    "sampling",
    "tokens",
    "uniform",
    "uniform_steps",
    "uniform_values",
]

# --- models and what they are given -----------------------------------------------------------------------------------


def held(parameters: Any, configuration: Configuration | None) -> tuple[Any, Configuration]:
    """Find the parameters and the configuration, which a loaded model has both.

    Args:
        parameters: a model, or a structure of arrays.
        configuration: that of a structure of arrays; None for a model.

    Returns:
        The structure and the configuration.

    Raises:
        TypeError: where there are two configurations, or none.
    """
    own = getattr(parameters, "configuration", None)
    if own is not None:
        if configuration is not None:
            raise TypeError("a model has its own configuration, and another was given beside it")
        return parameters.structure(), own
    if configuration is None:
        raise TypeError(f"parameters without a model need a configuration, got {described(parameters)} alone")
    return parameters, configuration


def generator(parameters: Any) -> int:
    """Check that a model can generate: it embeds tokens and gives logits.

    Args:
        parameters: a `LanguageModel` or a `Transformer`.

    Returns:
        The size of its vocabulary.

    Raises:
        TypeError: for another structure.
        ValueError: for one without an embedding or an output layer.
    """
    if not isinstance(parameters, LanguageModel | Transformer):
        why = ", which has no output layer; load_pretrained leaves it out where architectures names no language model"
        got = f"{described(parameters)}{why if isinstance(parameters, Decoder) else ''}"
        raise TypeError(f"parameters must be a LanguageModel or a Transformer, got {got}")
    if parameters.decoder.embedding is None:
        raise ValueError("generation needs a decoder that embeds tokens, and these parameters have no embedding")
    if parameters.output is None:
        raise ValueError("generation needs logits, and these parameters have no output layer")
    return ranked("output.weight", parameters.output.weight, "width, vocabulary")[1]


def source(parameters: Any, batch: int, given: Any) -> None:
    """Check that there is a source exactly where there is an encoder.

    Args:
        parameters: a `LanguageModel` or a `Transformer`.
        batch: the batch size of the tokens.
        given: the source, or None.

    Raises:
        TypeError: for what is no array.
        ValueError: for a source that is missing, not asked for, or of another batch size.
    """
    if isinstance(parameters, LanguageModel):
        if given is not None:
            raise ValueError(f"a LanguageModel takes no source, got {described(given)}")
        return
    if given is None:
        raise ValueError("a Transformer takes a source, got none")
    shape = shape_of("source", given)
    if shape[:1] != (batch,):
        raise ValueError(f"source must have the batch size {batch} of the tokens, got shape {list(shape)}")


def tokens(name: str, array: Any) -> tuple[int, int]:
    """Check token ids, of which there is at least one.

    Args:
        name: what messages call them.
        array: integers [B, T].

    Returns:
        (batch, positions).

    Raises:
        TypeError: for another dtype.
        ValueError: for another rank, and for no positions.
    """
    batch, length = ranked(name, array, "batch, positions")
    integer(name, array)
    if length == 0:
        raise ValueError(f"{name} must have at least one position, got shape {[batch, length]}")
    return batch, length


def empty_cache(parameters: Any, batch: Any, capacity: Any, given: Any) -> None:
    """Check the arguments of empty_cache (GEN-1).

    Args:
        parameters: a model that can generate.
        batch: the batch size.
        capacity: the number of positions that there is room for.
        given: the source, for a model that has an encoder.

    Raises:
        TypeError: for other structures, and for what is no integer.
        ValueError: for negative numbers, and for a source that does not fit.
    """
    generator(parameters)
    natural("capacity", capacity)
    source(parameters, natural("batch", batch), given)


def decode_step(parameters: Any, new: Any, cache: Cache, length: int | None) -> None:
    """Check the arguments of a step of decoding (GEN-1).

    Args:
        parameters: a model that can generate.
        new: ids [B, T].
        cache: of the model, for the same batch.
        length: how many positions of the cache are taken, or None where that cannot be read.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for a cache of another model or batch, or without room.
    """
    generator(parameters)
    batch, count = tokens("tokens", new)
    rows, capacity = cache.real.shape
    if batch != rows:
        raise ValueError(f"tokens and cache must have the same batch size, got {batch} and {rows}")
    if len(parameters.decoder.blocks) != len(cache.blocks):
        found = f"{len(parameters.decoder.blocks)} and {len(cache.blocks)}"
        raise ValueError(f"parameters and cache must have as many decoder blocks, got {found}")
    for i, (block, kept) in enumerate(zip(parameters.decoder.blocks, cache.blocks, strict=True)):
        block_cache(f"blocks[{i}]", block, kept, rows, capacity)
    taken = 0 if length is None else length
    if taken < 0:
        raise ValueError(f"the length of a cache must not be negative, got {taken}")
    if taken + count > capacity:
        raise ValueError(f"the cache has room for {capacity} positions, {taken} of which are taken, and {count} came")


def block_cache(name: str, block: Any, kept: Any, batch: int, capacity: int) -> None:
    """Check what a cache keeps of one block (GEN-1).

    Args:
        name: what messages call the block.
        block: a `DecoderBlock`.
        kept: a `BlockCache`.
        batch: the cache's batch size.
        capacity: the number of positions that there is room for.

    Raises:
        TypeError: for other structures.
        ValueError: for another batch size, room or number of columns than the block's.
    """
    structure(name, block, DecoderBlock)
    structure(f"the cache's {name}", kept, BlockCache)
    for attention, fields in ((block.self_attention, ("keys", "values")),
                              (block.cross_attention, ("memory_keys", "memory_values"))):  # fmt: skip
        if attention is None:
            continue
        structure(name, attention, MultiHeadAttention)
        for field, projection in zip(fields, (attention.key, attention.value), strict=True):
            array = getattr(kept, field)
            shape = ranked(f"the cache's {name}.{field}", array, "batch, heads, positions, width")
            heads = [projection] if isinstance(projection, Linear) else projection
            columns = sum(ranked("weight", head.weight, "in, out")[1] for head in heads)
            room = capacity if attention is block.self_attention else shape[2]
            if (shape[0], shape[2], shape[1] * shape[3]) != (batch, room, columns):
                raise ValueError(
                    f"the cache's {name}.{field} must have batch size {batch}, {room} positions and {columns} columns "
                    f"in all heads, got shape {list(shape)}"
                )


def no_look_ahead(what: str) -> None:
    """Refuse what a cache cannot give, because it depends on later tokens (GEN-1).

    Args:
        what: it is; empty for nothing.

    Raises:
        ValueError: if there is something.
    """
    if what:
        raise ValueError(f"no cache can hold {what}: that needs the full forward pass")


def generation(parameters: Any, prompt: Any, steps: Any, configuration: Configuration, given: Any, end: Any) -> int:
    """Check the arguments of generation (GEN-1).

    Args:
        parameters: a model that can generate.
        prompt: ids [B, T].
        steps: how many tokens are to follow.
        configuration: the model's.
        given: the source, for a model that has an encoder.
        end: the id of the token that ends a sequence, or None.

    Returns:
        The size of the vocabulary.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for shapes and ids that do not fit, and for more tokens than positions.
    """
    vocabulary = generator(parameters)
    batch, length = tokens("prompt", prompt)
    natural("steps", steps)
    source(parameters, batch, given)
    largest = int(np.iinfo(dtype_name(prompt)).max)
    if vocabulary - 1 > largest:
        raise TypeError(f"prompt must have a dtype that holds ids up to {vocabulary - 1}, got {dtype_name(prompt)}")
    if end is not None and not 0 <= natural("end", end) < vocabulary:
        raise ValueError(f"end must lie in [0, {vocabulary}), got {end}")
    table = parameters.decoder.embedding.positions
    if configuration.positions == "learned" and table is not None and steps > 0:
        rows, needed = table.shape[0], length + steps - 1
        if needed > rows:
            raise ValueError(
                f"{steps} tokens after a prompt of {length} need a table of {needed} positions, got {rows}"
            )
    return vocabulary


# --- choosing ---------------------------------------------------------------------------------------------------------


def sampling(temperature: Any, top_k: Any, top_p: Any) -> None:
    """Check by what is drawn (GEN-1).

    Args:
        temperature: positive and finite.
        top_k: how many tokens are drawn from, at least 1; None for all.
        top_p: what share of the probability is drawn from, above 0 and at most 1; None for all.

    Raises:
        TypeError: for what is no number.
        ValueError: for numbers out of range.
    """
    number = real_number("temperature", temperature)
    if number is not None and not 0 < number < float("inf"):
        raise ValueError(f"temperature must be positive and finite, got {number}")
    if top_k is not None and natural("top_k", top_k) < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    share = None if top_p is None else real_number("top_p", top_p)
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {share}")


def choice(logits: Any, uniforms: Any) -> None:
    """Check the logits of one position, and a random number for each batch element (GEN-1).

    Args:
        logits: [B, vocabulary].
        uniforms: [B].

    Raises:
        TypeError: for other dtypes.
        ValueError: for other shapes, and for no tokens.
    """
    batch, vocabulary = ranked("logits", logits, "batch, vocabulary")
    floating("logits", logits)
    if vocabulary == 0:
        raise ValueError(f"logits must be those of at least one token, got shape {[batch, vocabulary]}")
    uniform(uniforms, (batch,))


def uniform(array: Any, shape: tuple[int, ...]) -> None:
    """Check the shape and dtype of random numbers.

    Args:
        array: the random numbers.
        shape: the one that they must have.

    Raises:
        TypeError: for another dtype.
        ValueError: for another shape.
    """
    found = shape_of("uniforms", array)
    floating("uniforms", array)
    if found != shape:
        raise ValueError(f"uniforms must have shape {list(shape)}, got {list(found)}")


def uniform_steps(array: Any) -> int:
    """Read for how many steps there are random numbers.

    Args:
        array: [B, steps].

    Raises:
        TypeError: for what is no array.
        ValueError: for another rank.
    """
    return ranked("uniforms", array, "batch, steps")[1]


def uniform_values(values: np.ndarray | None) -> None:
    """Check the values of random numbers.

    Args:
        values: as NumPy's, or None where they cannot be read.

    Raises:
        ValueError: for numbers outside [0, 1).
    """
    if values is not None and values.size and not ((values >= 0) & (values < 1)).all():
        raise ValueError(f"uniforms must lie in [0, 1), got values from {values.min()} to {values.max()}")


def beams(count: Any, length_penalty: Any) -> None:
    """Check the arguments of beam search (GEN-1).

    Args:
        count: how many beams, at least 1.
        length_penalty: by what power of its length a sequence is rated.

    Raises:
        TypeError: for what is no number.
        ValueError: for numbers out of range.
    """
    if natural("beams", count) < 1:
        raise ValueError(f"beams must be at least 1, got {count}")
    number = real_number("length_penalty", length_penalty)
    if number is not None and not abs(number) < float("inf"):
        raise ValueError(f"length_penalty must be finite, got {number}")
