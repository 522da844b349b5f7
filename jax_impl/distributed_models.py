"""Models of which every rank has a part of the sequence, in JAX (DIST-7), inside `jax.shard_map`.

Norms, projections and networks take every position by itself, so a rank computes those of its own positions. Attention
goes over all ranks, and positions count in the whole. Each function takes the arguments of its namesake in
`transformer.py`, for this rank's part. All parts have the length T / R, as everything in `jax.shard_map`: pad other
lengths at the end, and hide the padding, by its token or by a mask. A rotary scaling that depends on the length then
counts the padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer

from jax_impl.blocks import add, decoder_block, drop, encoder_block, normalize_if, rotations_of
from jax_impl.distributed import Shards, head_parallel_attention, order_of, places_of, ring_attention
from jax_impl.dtypes import cast, widen
from jax_impl.embedding import embedding
from jax_impl.engines.varying import vary
from jax_impl.masks import checked_mask
from jax_impl.transformer import (
    embed,
    output_layer,
    padding_mask,
    position_bias,
    positions_after_padding,
    target_mask,
)
from specification import checks
from specification.checks.arguments import one_of
from specification.configuration import Configuration
from specification.distributed import LAYOUTS, even_pieces
from specification.dropout import DecoderBlockDropout, EncoderBlockDropout, StackDropout, TransformerDropout
from specification.masks import Causal, Mask, both
from specification.parameters import Decoder, Embedding, Encoder, LanguageModel, Transformer

__all__ = ["Ranks", "decoder", "encoder", "language_model", "transformer"]

SCHEMES: dict[str, Callable[..., Any]] = {"ring": ring_attention, "heads": head_parallel_attention}


class Ranks(NamedTuple):
    """Which ranks share a sequence, which positions each has, and how attention goes over all of them.

    axis_name, layout, engine: As in `ring_attention`. scheme: "ring" for that one, "heads" for
    `head_parallel_attention`.
    """

    axis_name: str
    layout: str = "contiguous"
    scheme: str = "ring"
    engine: str = "auto"

    def __call__(self, *arrays: jax.Array, **options: Any) -> jax.Array:
        """`attention` of the whole, for this rank's queries."""
        for name in ("dropout_keep", "dropout_rate", "empty_rows"):  # known to be their defaults
            del options[name]
        settings = {"axis_name": self.axis_name, "layout": self.layout, "engine": self.engine}
        return SCHEMES[self.scheme](*arrays, **settings, **options)


class Part(NamedTuple):
    """What this rank knows of a sequence of which it has a part."""

    axis_name: str
    pieces: Shards  # of every rank

    @property
    def length(self) -> int:
        """Of the whole."""
        return len(order_of(self.pieces))

    def places(self) -> list[tuple[slice, Any]]:
        """Where each piece stands among this rank's positions, and where it begins in the whole."""
        return [*places_of(self.pieces, lax.axis_index(self.axis_name))]

    def positions(self) -> jax.Array:
        return jnp.concatenate([start + np.arange(here.stop - here.start) for here, start in self.places()])

    def gather(self, ids: jax.Array) -> jax.Array:
        """[B, T] of the whole, from every rank's part."""
        return lax.all_gather(ids, self.axis_name, axis=1, tiled=True)[:, np.argsort(order_of(self.pieces))]


# --- models -----------------------------------------------------------------------------------------------------------


def encoder(
    parameters: Encoder,
    x: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    token_types: Integer[jax.Array, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[jax.Array, "B T E"]:
    """Compute this rank's positions of `encoder` of the whole (DIST-7).

    Args:
        parameters: Embedding, blocks and norm, the same on every rank: they enter by `PartitionSpec()`, and JAX adds
            up their gradients.
        x: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        configuration: As in `encoder`; empty_rows is "zero".
        mask: Of the whole and the same on every rank, beside that of the source's padding.
        token_types: [B, T], this rank's part.
        dropout: As in `encoder`, of this rank's positions; none of attention's weights.
        ranks: Who shares the sequence, and how.

    Returns:
        A new array [B, T, E], this rank's positions.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    part = describe_part(Encoder, parameters, x, ranks, configuration=configuration, dropout=dropout, types=token_types)
    parameters = sum_gradients(ranks.axis_name, parameters)
    return compute_encoder_part(parameters, x, part, ranks, configuration, mask, token_types, dropout)[0]


def decoder(
    parameters: Decoder,
    x: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"],
    memory: Float[jax.Array, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    memory_mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[jax.Array, "B T E"]:
    """Compute this rank's positions of `decoder` of the whole (DIST-7).

    Args:
        parameters, configuration, dropout, ranks: As in `encoder`.
        x: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        memory: [B, S, E], this rank's part of the encoder's output, or None. S need not be T.
        mask: Of the whole, beside what the configuration's target_mask says.
        memory_mask: Of the attention to the whole memory.

    Returns:
        A new array [B, T, E], this rank's positions.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """
    part = describe_part(Decoder, parameters, x, ranks, configuration=configuration, dropout=dropout, memory=memory)
    parameters = sum_gradients(ranks.axis_name, parameters)
    return compute_decoder_part(parameters, x, memory, part, ranks, configuration, mask, memory_mask, dropout)


def transformer(
    parameters: Transformer,
    source: Float[jax.Array, "B S E"] | Integer[jax.Array, "B S"],
    target: Float[jax.Array, "B T E"] | Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    source_mask: Mask | Bool[jax.Array, "..."] | None = None,
    target_mask: Mask | Bool[jax.Array, "..."] | None = None,
    memory_mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: TransformerDropout = TransformerDropout(),
    ranks: Ranks,
) -> Float[jax.Array, "B T N"]:
    """Compute this rank's positions of `transformer` of the whole (DIST-7).

    Args:
        parameters, configuration, ranks: As in `encoder`.
        source: [B, S] tokens, this rank's part, or [B, S, E] where the parameters have no embedding.
        target: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        source_mask, target_mask, memory_mask: As in `transformer`, of the whole.
        dropout: As in `transformer`, of this rank's positions; none of attention's weights.

    Returns:
        A new array [B, T, N], this rank's positions; [B, T, E] where there is no output layer.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """
    checks.structure("parameters", parameters, Transformer)
    checks.sites(dropout, TransformerDropout)
    options: Any = {"configuration": configuration}
    source_part = describe_part(Encoder, parameters.encoder, source, ranks, dropout=dropout.encoder, **options)
    part = describe_part(Decoder, parameters.decoder, target, ranks, dropout=dropout.decoder, **options)
    parameters = sum_gradients(ranks.axis_name, parameters)
    memory, padding = compute_encoder_part(
        parameters.encoder, source, source_part, ranks, configuration, source_mask, None, dropout.encoder
    )
    memory_mask = both(memory_mask, padding)
    x = compute_decoder_part(
        parameters.decoder, target, memory, part, ranks, configuration, target_mask, memory_mask, dropout.decoder
    )
    return x if parameters.output is None else output_layer(parameters.output, x, configuration)


def language_model(
    parameters: LanguageModel,
    tokens: Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[jax.Array, "B T N"]:
    """Compute this rank's positions of `language_model` of the whole (DIST-7).

    Args:
        parameters, configuration, dropout, ranks: As in `encoder`.
        tokens: [B, T], this rank's part.
        mask: As in `decoder`, of the whole.

    Returns:
        A new array [B, T, N], this rank's positions.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """
    checks.structure("parameters", parameters, LanguageModel)
    part = describe_part(Decoder, parameters.decoder, tokens, ranks, configuration=configuration, dropout=dropout)
    parameters = sum_gradients(ranks.axis_name, parameters)
    x = compute_decoder_part(parameters.decoder, tokens, None, part, ranks, configuration, mask, None, dropout)
    return output_layer(parameters.output, x, configuration)


# --- a part of a stack ------------------------------------------------------------------------------------------------


def compute_encoder_part(
    parameters: Encoder,
    x: jax.Array,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    mask: Any,
    token_types: jax.Array | None,
    dropout: StackDropout,
) -> tuple[jax.Array, Any]:
    """This rank's positions, and the mask of the whole source's padding."""
    padding = None
    if parameters.embedding is not None:
        tokens = part.gather(x)
        padding = padding_mask(tokens, configuration.source_padding)
        x = embed_part(parameters.embedding, x, tokens, token_types, part, configuration)
    x = drop(x, dropout.embedding)
    mask = checked_mask(both(mask, padding), part.length, part.length, x.shape[0], configuration.num_heads)
    apply: Any = inspect.unwrap(encoder_block) if dropout.blocks else encoder_block
    attentions: Any = [block.attention for block in parameters.blocks]
    return apply_blocks(apply, attentions, parameters, x, part, ranks, configuration, dropout, mask=mask), padding


def compute_decoder_part(
    parameters: Decoder,
    x: jax.Array,
    memory: jax.Array | None,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    mask: Any,
    memory_mask: Any,
    dropout: StackDropout,
) -> jax.Array:
    """This rank's positions."""
    if parameters.embedding is not None:
        tokens = part.gather(x)
        mask = both(mask, target_mask(tokens, configuration))
        x = embed_part(parameters.embedding, x, tokens, None, part, configuration)
    elif configuration.target_mask != "none":
        mask = both(mask, Causal())
    x = drop(x, dropout.embedding)
    sizes = x.shape[0], configuration.num_heads
    options: Any = {"memory": memory, "mask": checked_mask(mask, part.length, part.length, *sizes)}
    if memory is not None:
        length = memory.shape[1] * len(part.pieces)
        options["memory_mask"] = checked_mask(memory_mask, part.length, length, *sizes)
    apply: Any = inspect.unwrap(decoder_block) if dropout.blocks else decoder_block
    attentions: Any = [block.self_attention for block in parameters.blocks]
    return apply_blocks(apply, attentions, parameters, x, part, ranks, configuration, dropout, **options)


def apply_blocks(
    apply: Callable[..., Any],
    attentions: list[Any],
    parameters: Encoder | Decoder,
    x: jax.Array,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    dropout: StackDropout,
    **options: Any,
) -> jax.Array:
    """Apply every block to this rank's positions, and the last norm.

    apply: `encoder_block` or `decoder_block`, which takes the options. attentions: the self-attention of each block,
    for which rotations are made here.
    """
    options |= {"configuration": configuration, "attention_function": ranks}
    options["bias"] = bias_of_part(parameters, part, configuration)
    blocks: Any = parameters.blocks
    layers = configuration.layers(len(blocks))
    no_dropout = EncoderBlockDropout() if isinstance(parameters, Encoder) else DecoderBlockDropout()
    sites = dropout.blocks or [no_dropout] * len(blocks)
    rotations = rotations_of(attentions, layers, x, configuration, part.positions(), part.length)
    for block, layer, rotation, dropped in zip(blocks, layers, rotations, sites, strict=True):
        x = apply(block, x, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def embed_part(
    parameters: Any,
    own: jax.Array,
    tokens: jax.Array,
    token_types: jax.Array | None,
    part: Part,
    configuration: Configuration,
) -> jax.Array:
    """What `embed` gives for this rank's tokens."""
    checks.structure("embedding", parameters, Embedding)
    if configuration.positions == "after_padding":
        assert configuration.position_padding is not None  # a Configuration sees to it
        positions = positions_after_padding(tokens, configuration.position_padding)
        others = replace(configuration, positions="none", position_padding=None)
        x = embed(parameters._replace(positions=None, norm=None), own, configuration=others, token_types=token_types)
        x = add(x, embedding(parameters.positions, positions[:, part.positions()]))
        return normalize_if(parameters.norm, x, configuration)
    if configuration.positions == "learned":
        checks.learned_positions(parameters.positions, part.length, 0)
    rows = []
    for here, start in part.places():
        types = None if token_types is None else token_types[:, here]
        piece = own[:, here]
        rows.append(embed(parameters, piece, configuration=configuration, token_types=types, offset=start))
    return jnp.concatenate(rows, axis=1)


def bias_of_part(parameters: Encoder | Decoder, part: Part, configuration: Configuration) -> Any:
    """The rows of `position_bias` for this rank's queries."""
    if parameters.relative_positions is None:
        return None
    sizes = [(here.stop - here.start, part.length, start) for here, start in part.places()]
    return jnp.concatenate([position_bias(parameters, configuration, *numbers) for numbers in sizes], axis=-2)


# --- the call ---------------------------------------------------------------------------------------------------------


def describe_part(
    kind: type,
    parameters: Encoder | Decoder,
    x: jax.Array,
    ranks: Ranks,
    *,
    configuration: Configuration,
    dropout: StackDropout,
    types: jax.Array | None = None,
    memory: jax.Array | None = None,
) -> Part:
    """Check a call, and tell which positions each rank has."""
    one_of("layout", ranks.layout, LAYOUTS)
    one_of("scheme", ranks.scheme, tuple(SCHEMES))
    checks.stack(parameters, kind, x, dropout, types, memory)
    checks.model_over_ranks(parameters, configuration, x, dropout, types)
    count = lax.axis_size(ranks.axis_name)
    return Part(ranks.axis_name, tuple(even_pieces(x.shape[1] * count, count, ranks.layout)))


def sum_gradients(axis_name: str, parameters: Any) -> Any:
    """The same parameters, which vary. The gradient of that is the sum over ranks, which widening rounds once."""
    return jax.tree.map(lambda array: cast(vary(widen(array), (axis_name,)), array.dtype), parameters)
