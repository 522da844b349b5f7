"""Encoder and decoder blocks in JAX (rules BLK-1 to BLK-3), as `reference_numpy/blocks.py` defines them.

A block is compiled as a whole, once for all blocks of one shape; the configuration is static. What its masks hold is
checked where a model calls it, and not in here, where it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer

from jax_impl.attention import attention
from jax_impl.attention_steps import dropout_factor
from jax_impl.dtypes import cast, compile_with, widen
from jax_impl.experts import mixture_of_experts
from jax_impl.feed_forward import feed_forward, gated_feed_forward
from jax_impl.latent_attention import attend_to_latents, project_latent_queries, project_latents
from jax_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from jax_impl.masks import readable
from jax_impl.multi_head_attention import concatenate_heads, fused, join_heads, linear, split_heads
from jax_impl.rotary import rotary_table, rotate
from specification import checks
from specification.blocks import Sublayer, attention_options, sublayers_of, windowed
from specification.configuration import AttentionLayer, Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout
from specification.dtypes import compute_dtype_name, dtype_name
from specification.masks import Mask
from specification.parameters import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LatentAttention,
    MixtureOfExperts,
    MultiHeadAttention,
    Norm,
)
from specification.rotary import Rotary, Rotation

__all__ = ["decoder_block", "encoder_block"]

# --- the pieces -------------------------------------------------------------------------------------------------------


def add(x: Float[jax.Array, "..."], y: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """x + y, rounded to the dtype of x; y may lack leading axes, and is stretched along no other."""
    checks.summands(x, y)
    return cast(widen(x) + widen(y), x.dtype)


def drop(x: Float[jax.Array, "..."], dropout: Dropout | None) -> Float[jax.Array, "..."]:
    """x * keep / (1 - rate), or x itself (BLK-2)."""
    if dropout is None:
        return x
    checks.dropout(dropout.keep, dropout.rate, x.shape)
    return cast(widen(x) * dropout_factor(dropout.keep, dropout.rate, widen(x).dtype), x.dtype)


def normalize(
    parameters: Norm, x: Float[jax.Array, "... E"], configuration: Configuration
) -> Float[jax.Array, "... E"]:
    """The norm that the configuration names."""
    checks.structure("norm", parameters, Norm)
    if configuration.norm == "layer_norm":
        return layer_norm(x, parameters.weight, parameters.bias, eps=configuration.norm_eps)
    if configuration.norm == "standard_deviation_norm":
        return standard_deviation_norm(x, parameters.weight, parameters.bias, eps=configuration.norm_eps)
    checks.no_bias(parameters.bias)
    plus_one = configuration.norm == "rms_norm_plus_one"
    return rms_norm(x, parameters.weight, eps=configuration.norm_eps, plus_one=plus_one)


# --- attention --------------------------------------------------------------------------------------------------------


def normalized_heads(
    norm: Norm | None, x: Float[jax.Array, "B T HW"], num_heads: int, configuration: Configuration
) -> Float[jax.Array, "B H T W"]:
    """x in heads, each normalised by itself, or all together where the norm's weight is for all columns (NORM-8)."""
    if norm is None:
        return split_heads(x, num_heads)
    if norm.weight.shape == x.shape[-1:]:
        return split_heads(normalize(norm, x, configuration), num_heads)
    return normalize(norm, split_heads(x, num_heads), configuration)


def rotations_of(
    attentions: list[MultiHeadAttention | LatentAttention],
    layers: Sequence[AttentionLayer],
    x: Float[jax.Array, "B T E"],
    configuration: Configuration,
    positions: Integer[jax.Array | np.ndarray, "T"] | None = None,
    length: int | None = None,
) -> list[Rotation | None]:
    """The `rotation_of` x for every layer, made once for all that rotate alike."""
    kinds = [
        (layer.rotary, None if layer.rotary is None else check_attention(parameters, x, x, configuration, layer))
        for parameters, layer in zip(attentions, layers, strict=True)
    ]
    made: list[Rotation | None] = []
    for kind in kinds:
        first = next(i for i, other in enumerate(kinds) if other == kind)
        made.append(made[first] if first < len(made) else rotation_of(*kind, x, positions, length))
    return made


def rotation_of(
    rotary: Rotary | None,
    width: int | None,
    x: Float[jax.Array, "B T E"],
    positions: Integer[jax.Array | np.ndarray, "T"] | None = None,
    length: int | None = None,
) -> Rotation | None:
    """Sine and cosine for heads of that width, at positions 0, 1, ... unless given; None for no rotation (POS-3).

    length: of the sequence, on which the frequencies may depend; the last position + 1 unless given.
    """
    if rotary is None or width is None:
        return None
    positions = np.arange(x.shape[1]) if positions is None else positions
    length = checks.rotary_length(rotary.scaling, length, readable(positions))
    columns, dtype = checks.rotary_fits(rotary, width), compute_dtype_name(dtype_name(x))
    return Rotation(*rotary_table(positions, columns, rotary.base, rotary.scaling, length, dtype))


def rotated(
    x: Float[jax.Array, "B H T D"], layer: AttentionLayer, rotation: Rotation | None
) -> Float[jax.Array, "B H T D"]:
    """Queries or keys, rotated where the layer says so."""
    if layer.rotary is None:
        return x
    assert rotation is not None  # `attend` makes one where there is none
    sine, cosine = rotation
    return rotate(x, sine, cosine, layer.rotary.pairing)


def project_queries(
    parameters: MultiHeadAttention | LatentAttention,
    x: Float[jax.Array, "B Q E"],
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
    rotation: Rotation | None = None,
) -> Float[jax.Array, "B H Q D"]:
    """Queries by heads: projected, normalised, rotated."""
    if isinstance(parameters, LatentAttention):
        return project_latent_queries(parameters, x, *latent_options(configuration, layer, rotation))
    projected = linear(join_heads(parameters.query), x)
    heads = normalized_heads(parameters.query_norm, projected, configuration.num_heads, configuration)
    return rotated(heads, layer, rotation)


def project_keys(
    parameters: MultiHeadAttention | LatentAttention,
    memory: Float[jax.Array, "B K E_key"],
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
    rotation: Rotation | None = None,
) -> tuple[Float[jax.Array, "B G K D"], Float[jax.Array, "B G K V"]]:
    """Keys by heads: projected, normalised, rotated; and values by heads.

    Of latent attention the latents and the rotated key, as one head each (MLA-1).
    """
    if isinstance(parameters, LatentAttention):
        _, turns, pairing, eps = latent_options(configuration, layer, rotation)
        latents, rotated_keys = project_latents(parameters, memory, turns, pairing, eps)
        return split_heads(latents, 1), split_heads(rotated_keys, 1)
    keys, values = linear(join_heads(parameters.key), memory), linear(join_heads(parameters.value), memory)
    G = key_heads(parameters, configuration.num_heads)
    heads = normalized_heads(parameters.key_norm, keys, G, configuration)
    return rotated(heads, layer, rotation), split_heads(values, G)


def latent_options(
    configuration: Configuration, layer: AttentionLayer, rotation: Rotation | None
) -> tuple[int, Rotation, str, float]:
    """What the projections of latent attention take beside parameters and x."""
    rotary, turns = checks.latent_rotation(layer.rotary, rotation)
    return configuration.num_heads, turns, rotary.pairing, configuration.latent_eps


def key_heads(parameters: MultiHeadAttention, num_heads: int) -> int:
    """G, the key's columns in widths of a query head."""
    queries, keys = (join_heads(p).weight.shape[1] for p in parameters[:2])
    return keys // (queries // num_heads)


def attend_to(
    parameters: MultiHeadAttention | LatentAttention,
    query: Float[jax.Array, "B H Q D"],
    keys: Float[jax.Array, "B G K D"],
    values: Float[jax.Array, "B G K V"],
    mask: Mask | Bool[jax.Array, "..."] | None,
    weights_dropout: Dropout | None,
    configuration: Configuration,
    bias: Float[jax.Array, "..."] | None = None,
    attention_function: Callable[..., Any] | None = None,
) -> Float[jax.Array, "B Q E"]:
    """What queries, keys and values give that are projected already."""
    first: Any = getattr(parameters, "query_down", None) or parameters.query
    options = attention_options(join_heads(first).weight.shape[0], mask, weights_dropout, configuration)
    if isinstance(parameters, LatentAttention):
        latents, rotated_keys = concatenate_heads(keys), concatenate_heads(values)
        return attend_to_latents(
            parameters, query, latents, rotated_keys, bias=bias, attention_function=attention_function, **options
        )
    heads = (attention_function or attention)(query, keys, values, bias=bias, sinks=parameters.sinks, **options)
    return linear(parameters.output, concatenate_heads(heads))


def attend(
    parameters: MultiHeadAttention | LatentAttention,
    x: Float[jax.Array, "B T E"],
    memory: jax.Array,
    mask: Mask | Bool[jax.Array, "..."] | None,
    weights_dropout: Dropout | None,
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[jax.Array, "..."] | None = None,
    rotation: Rotation | None = None,
    attention_function: Callable[..., Any] | None = None,
) -> Float[jax.Array, "B T E"]:
    """Attention of x to memory, which in self-attention is x. bias: of the scores (ATT-3). rotation: as in a block."""
    width = check_attention(parameters, x, memory, configuration, layer)
    checks.rotation(rotation, layer.rotary, width, x)
    rotation = rotation_of(layer.rotary, width, x) if rotation is None else rotation
    of_keys = rotation if memory.shape[1] == x.shape[1] else rotation_of(layer.rotary, width, memory)
    query = project_queries(parameters, x, configuration, layer, rotation)
    keys, values = project_keys(parameters, memory, configuration, layer, of_keys)
    return attend_to(
        parameters, query, keys, values, windowed(mask, layer), weights_dropout, configuration, bias,
        attention_function=attention_function,
    )  # fmt: skip


def check_attention(
    parameters: MultiHeadAttention | LatentAttention,
    x: jax.Array,
    memory: jax.Array,
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
) -> int:
    """The width that may be rotated; refuse what does not fit one another or the inputs (MHA-1, NORM-8, MLA-1)."""
    if isinstance(parameters, LatentAttention):
        return checks.latent_block(parameters, x, memory, configuration, layer.rotary)
    checks.structure("parameters", parameters, MultiHeadAttention)
    return checks.block_attention(parameters, fused(parameters), x, memory, configuration.num_heads)


def transform(
    parameters: FeedForward | GatedFeedForward | MixtureOfExperts,
    x: Float[jax.Array, "B T E"],
    inner_dropout: Dropout | None,
    configuration: Configuration,
) -> Float[jax.Array, "B T E"]:
    """The feed-forward network, plain, gated or a mixture as the parameters are, with the configured activation."""
    if isinstance(parameters, MixtureOfExperts):
        checks.mixture_in_block(configuration.experts, inner_dropout)
        return mixture_of_experts(
            parameters,
            x,
            activation=configuration.activation,
            **asdict(configuration.experts),  # type: ignore[arg-type]
        )
    keep, rate = (None, 0.0) if inner_dropout is None else inner_dropout
    options: Any = {"activation": configuration.activation, "dropout_keep": keep, "dropout_rate": rate}
    if isinstance(parameters, GatedFeedForward):
        return gated_feed_forward(parameters, x, **options)
    return feed_forward(parameters, x, **options)


# --- residual connections ---------------------------------------------------------------------------------------------


def normalize_if(norm: Norm | None, x: Float[jax.Array, "B T E"], configuration: Configuration) -> Any:
    """x itself where there is no norm."""
    return x if norm is None else normalize(norm, x, configuration)


def residual(
    sublayer: Sublayer, x: Float[jax.Array, "B T E"], configuration: Configuration
) -> Float[jax.Array, "B T E"]:
    """One sublayer with its norm and residual connection, in the configuration's order (BLK-1, BLK-3)."""
    function, norm, dropout, output_norm = sublayer
    if configuration.norm_order == "post":
        x = add(x, drop(function(x), dropout.output))
        return drop(normalize(norm, x, configuration), dropout.norm)  # type: ignore[arg-type]
    if configuration.norm_order == "after":
        output = drop(function(x), dropout.output)
        return add(x, drop(normalize(norm, output, configuration), dropout.norm))  # type: ignore[arg-type]
    normalized = drop(normalize_if(norm, x, configuration), dropout.norm)
    output = drop(function(normalized), dropout.output)
    return add(x, normalize_if(output_norm, output, configuration))


def parallel(
    attention: Sublayer, position_wise: Sublayer, x: Float[jax.Array, "B T E"], configuration: Configuration
) -> Float[jax.Array, "B T E"]:
    """x + (attention(norm(x)) + feed_forward(norm(x))); the second has the first's norm where it has none (BLK-3)."""
    normalized = normalize_if(attention.norm, x, configuration)
    other = normalized if position_wise.norm is None else normalize(position_wise.norm, x, configuration)
    outputs = [
        drop(sublayer.function(drop(given, sublayer.dropout.norm)), sublayer.dropout.output)
        for sublayer, given in ((attention, normalized), (position_wise, other))
    ]
    return add(x, add(*outputs))


def through(
    sublayers: list[Sublayer], x: Float[jax.Array, "B T E"], configuration: Configuration
) -> Float[jax.Array, "B T E"]:
    """All sublayers of a block, one after another or side by side."""
    if configuration.norm_order == "parallel":
        return parallel(sublayers[0], sublayers[1], x, configuration)
    for sublayer in sublayers:
        x = residual(sublayer, x, configuration)
    return x


# --- blocks -----------------------------------------------------------------------------------------------------------


@compile_with("configuration", "layer", "attention_function")
def encoder_block(
    parameters: EncoderBlock,
    x: Float[jax.Array, "B T E"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[jax.Array, "..."] | None = None,
    rotation: Rotation | None = None,
    dropout: EncoderBlockDropout = EncoderBlockDropout(),
    attention_function: Callable[..., Any] | None = None,
) -> Float[jax.Array, "B T E"]:
    """Apply self-attention, then the feed-forward network, each with residual connection and norm (BLK-1).

    Args:
        parameters: Of the block, in the dtype of x.
        x: [B, T, E].
        configuration: What the parameters do not say.
        mask: Who attends to whom, a description or a boolean array.
        layer: The window and rotation of the block's attention, which is one of the configuration's attention_layers.
        bias: Of the attention's scores, as in `attention`.
        rotation: Sine and cosine of the layer's rotation, [1, T, W / 2] each in the dtype of computation, as
            `rotations_of` makes them once for a model; None makes them here.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).
        attention_function: What computes attention of heads, with the arguments of `attention`; None for that one.

    Returns:
        A new array [B, T, E] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, EncoderBlock)
    checks.sites(dropout, EncoderBlockDropout)
    checks.norms(parameters, configuration)
    p = parameters

    def attention(x: jax.Array) -> Any:
        return attend(
            p.attention, x, x, mask, dropout.attention.inner, configuration, layer, bias, rotation,
            attention_function=attention_function,
        )  # fmt: skip

    def position_wise(x: jax.Array) -> Any:
        return transform(p.feed_forward, x, dropout.feed_forward.inner, configuration)

    functions = {"attention": attention, "feed_forward": position_wise}
    return through(sublayers_of(p, functions, dropout), x, configuration)


@compile_with("configuration", "layer", "attention_function")
def decoder_block(
    parameters: DecoderBlock,
    x: Float[jax.Array, "B T E"],
    memory: Float[jax.Array, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Bool[jax.Array, "..."] | None = None,
    memory_mask: Mask | Bool[jax.Array, "..."] | None = None,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[jax.Array, "..."] | None = None,
    rotation: Rotation | None = None,
    dropout: DecoderBlockDropout = DecoderBlockDropout(),
    attention_function: Callable[..., Any] | None = None,
) -> Float[jax.Array, "B T E"]:
    """Apply self-attention, attention to memory, then the feed-forward network, as in `encoder_block` (BLK-1).

    Args:
        parameters: Of the block, in the dtype of x.
        x: [B, T, E].
        memory: [B, S, E], the encoder's output, which is not normalised again. None where the parameters have no
            cross-attention.
        configuration: What the parameters do not say.
        mask: Of the self-attention.
        memory_mask: Of the attention to memory, with Q = T and K = S.
        layer, bias, rotation: Of the self-attention, as in `encoder_block`.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).
        attention_function: What computes attention of heads, with the arguments of `attention`; None for that one.

    Returns:
        A new array [B, T, E] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, DecoderBlock)
    checks.decoder_sites(parameters, dropout)
    checks.memory(parameters, memory)
    checks.norms(parameters, configuration)
    p = parameters
    cross: Any = p.cross_attention

    def self_attention(x: jax.Array) -> Any:
        return attend(
            p.self_attention, x, x, mask, dropout.self_attention.inner, configuration, layer, bias, rotation,
            attention_function=attention_function,
        )  # fmt: skip

    def cross_attention(x: jax.Array) -> Any:
        assert memory is not None  # it is checked
        return attend(
            cross, x, memory, memory_mask, dropout.cross_attention.inner, configuration,
            attention_function=attention_function,
        )  # fmt: skip

    def position_wise(x: jax.Array) -> Any:
        return transform(p.feed_forward, x, dropout.feed_forward.inner, configuration)

    functions = {"self_attention": self_attention, "cross_attention": cross_attention, "feed_forward": position_wise}
    return through(sublayers_of(p, functions, dropout), x, configuration)
