"""Gradients of the blocks in `blocks.py`, by hand.

Each `<block>_vjp` takes the block's own arguments and the cotangent of its result. A residual connection hands its
cotangent on twice, to x and to the sublayer, and what comes back from both is added up:

    post       s = x + f(x), y = norm(s)            s_bar = norm_vjp(y_bar),  x_bar = s_bar + f_vjp(s_bar)
    pre        n = norm(x), y = x + f(n)            x_bar = y_bar + norm_vjp(f_vjp(y_bar))
    around     n = norm(x), y = x + norm2(f(n))     x_bar = y_bar + norm_vjp(f_vjp(norm2_vjp(y_bar)))
    after      y = x + norm(f(x))                   x_bar = y_bar + f_vjp(norm_vjp(y_bar))
    parallel   y = x + f(norm(x)) + g(norm(x))      x_bar = y_bar + norm_vjp(f_vjp(y_bar) + g_vjp(y_bar))

Gradients of parameters come in the parameters' structure, those of per-head projections joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from reference_numpy.attention import attention
from reference_numpy.attention_vjp import attention_vjp
from reference_numpy.blocks import (
    Sublayer,
    add,
    attend,
    attention_options,
    check_attention,
    drop,
    key_heads,
    normalize,
    normalize_if,
    project_keys,
    project_queries,
    residual,
    rotation_of,
    transform,
    windowed,
)
from reference_numpy.feed_forward_vjp import feed_forward_vjp, gated_feed_forward_vjp
from reference_numpy.layer_norm_vjp import layer_norm_vjp, rms_norm_vjp, standard_deviation_norm_vjp
from reference_numpy.multi_head_attention import concatenate_heads, join_heads, linear, split_heads
from reference_numpy.multi_head_attention_vjp import linear_vjp
from reference_numpy.rotary import rotate
from specification import checks
from specification.configuration import AttentionLayer, Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout
from specification.dtypes import dtype_name
from specification.parameters import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    Linear,
    MultiHeadAttention,
    Norm,
)
from specification.rotary import Rotation

__all__ = ["DecoderBlockGradients", "EncoderBlockGradients", "decoder_block_vjp", "encoder_block_vjp"]


class EncoderBlockGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; bias is None where none was given."""

    parameters: EncoderBlock
    x: Any
    bias: Any


class DecoderBlockGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; None for a memory or bias that was not given."""

    parameters: DecoderBlock
    x: Any
    memory: Any
    bias: Any


# --- the pieces -------------------------------------------------------------------------------------------------------


def normalize_vjp(
    parameters: Norm, x: Float[np.ndarray, "... E"], cotangent: Float[np.ndarray, "... E"], configuration: Configuration
) -> tuple[Norm, Float[np.ndarray, "... E"]]:
    """Gradients of the parameters and of x, for `normalize`."""
    eps = configuration.norm_eps
    if configuration.norm == "layer_norm":
        gradients = layer_norm_vjp(x, parameters.weight, parameters.bias, cotangent, eps=eps)
    elif configuration.norm == "standard_deviation_norm":
        gradients = standard_deviation_norm_vjp(x, parameters.weight, parameters.bias, cotangent, eps=eps)
    else:
        plus_one = configuration.norm == "rms_norm_plus_one"
        gradients = rms_norm_vjp(x, parameters.weight, cotangent, eps=eps, plus_one=plus_one)
    return Norm(gradients.weight, gradients.bias), gradients.x


def normalize_if_vjp(norm: Norm | None, x: Any, cotangent: Any, configuration: Configuration) -> tuple[Any, Any]:
    """The cotangent itself where there is no norm."""
    return (None, cotangent) if norm is None else normalize_vjp(norm, x, cotangent, configuration)


# --- attention --------------------------------------------------------------------------------------------------------


def rotated_vjp(
    cotangent: Float[np.ndarray, "B H T D"], layer: AttentionLayer, rotation: Any
) -> Float[np.ndarray, "B H T D"]:
    """Gradient of what is rotated, for `rotated`; a rotation is linear, so it depends on no x."""
    if layer.rotary is None:
        return cotangent
    sine, cosine = rotation
    return rotate(cotangent, -sine, cosine, layer.rotary.pairing)


def normalized_heads_vjp(
    norm: Norm | None,
    x: Float[np.ndarray, "B T HW"],
    num_heads: int,
    cotangent: Float[np.ndarray, "B H T W"],
    configuration: Configuration,
) -> tuple[Norm | None, Float[np.ndarray, "B T HW"]]:
    """Gradients of the norm's parameters and of x, for `normalized_heads`."""
    if norm is None:
        return None, concatenate_heads(cotangent)
    if norm.weight.shape == x.shape[-1:]:
        return normalize_vjp(norm, x, concatenate_heads(cotangent), configuration)
    gradient, heads = normalize_vjp(norm, split_heads(x, num_heads), cotangent, configuration)
    return gradient, concatenate_heads(heads)


def project_vjp(
    projection: Linear,
    norm: Norm | None,
    x: Float[np.ndarray, "B T E"],
    num_heads: int,
    layer: AttentionLayer,
    rotation: Any,
    cotangent: Float[np.ndarray, "B H T W"],
    configuration: Configuration,
) -> tuple[Linear, Norm | None, Float[np.ndarray, "B T E"]]:
    """Gradients of the projection, of its norm and of x, given those of queries or keys as attention takes them."""
    columns, turned = linear(projection, x), rotated_vjp(cotangent, layer, rotation)
    norm_gradient, columns_gradient = normalized_heads_vjp(norm, columns, num_heads, turned, configuration)
    gradient, x_gradient = linear_vjp(projection, x, columns_gradient)
    return gradient, norm_gradient, x_gradient


def attend_vjp(
    parameters: MultiHeadAttention,
    x: Float[np.ndarray, "B T E"],
    memory: Float[np.ndarray, "B S E"],
    mask: Any,
    weights_dropout: Dropout | None,
    configuration: Configuration,
    cotangent: Float[np.ndarray, "B T E"],
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[np.ndarray, "..."] | None = None,
    rotation: Any = None,
) -> tuple[MultiHeadAttention, Float[np.ndarray, "B T E"], Float[np.ndarray, "B S E"], Any]:
    """Gradients of the parameters, of x as the queries, of memory as the keys and values, and of the bias."""
    width = check_attention(parameters, x, memory, configuration)
    checks.rotation(rotation, layer.rotary, width, x)
    rotation = rotation_of(layer.rotary, width, x) if rotation is None else rotation
    of_keys = rotation if memory.shape[1] == x.shape[1] else rotation_of(layer.rotary, width, memory)
    p, H = parameters, configuration.num_heads
    options = attention_options(x.shape[-1], windowed(mask, layer), weights_dropout, configuration)
    options |= {"bias": bias, "sinks": p.sinks}
    query = project_queries(p, x, configuration, layer, rotation)
    keys, values = project_keys(p, memory, configuration, layer, of_keys)
    joined = concatenate_heads(attention(query, keys, values, **options))
    output, joined_gradient = linear_vjp(p.output, joined, cotangent)
    inner = attention_vjp(query, keys, values, split_heads(joined_gradient, H), **options)
    of_query = project_vjp(join_heads(p.query), p.query_norm, x, H, layer, rotation, inner.query, configuration)
    G = key_heads(p, H)
    of_key = project_vjp(join_heads(p.key), p.key_norm, memory, G, layer, of_keys, inner.key, configuration)
    value, as_value = linear_vjp(join_heads(p.value), memory, concatenate_heads(inner.value))
    gradients = MultiHeadAttention(of_query[0], of_key[0], value, output, of_query[1], of_key[1], inner.sinks)
    return gradients, of_query[2], add(of_key[2], as_value), inner.bias


def transform_vjp(
    parameters: FeedForward | GatedFeedForward,
    x: Float[np.ndarray, "B T E"],
    inner_dropout: Dropout | None,
    configuration: Configuration,
    cotangent: Float[np.ndarray, "B T E"],
) -> tuple[FeedForward | GatedFeedForward, Float[np.ndarray, "B T E"]]:
    """Gradients of the parameters and of x, for `transform`."""
    keep, rate = (None, 0.0) if inner_dropout is None else inner_dropout
    options: Any = {"activation": configuration.activation, "dropout_keep": keep, "dropout_rate": rate}
    if isinstance(parameters, GatedFeedForward):
        gradients = gated_feed_forward_vjp(parameters, x, cotangent, **options)
    else:
        gradients = feed_forward_vjp(parameters, x, cotangent, **options)
    return gradients.parameters, gradients.x


# --- residual connections ---------------------------------------------------------------------------------------------

Pullback = Callable[[Any, Any], tuple[Any, ...]]
"""From a sublayer's input and the cotangent of its result to its gradients, that of the input last."""


class SublayerGradients(NamedTuple):
    """Of the two norms, where they are there, and of what the sublayer has beside its input."""

    norm: Norm | None
    output_norm: Norm | None
    others: tuple[Any, ...]


def residual_vjp(
    sublayer: Sublayer,
    pullback: Pullback,
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E"],
    configuration: Configuration,
) -> tuple[SublayerGradients, Float[np.ndarray, "B T E"]]:
    """Gradients of all that the sublayer has, and of x, for `residual`."""
    function, norm, dropout, output_norm = sublayer
    required: Any = norm
    if configuration.norm_order == "post":
        total = add(x, drop(function(x), dropout.output))
        norm_gradient, total_gradient = normalize_vjp(required, total, drop(cotangent, dropout.norm), configuration)
        *others, x_gradient = pullback(x, drop(total_gradient, dropout.output))
        return SublayerGradients(norm_gradient, None, tuple(others)), add(total_gradient, x_gradient)
    if configuration.norm_order == "after":
        output = drop(function(x), dropout.output)
        norm_gradient, output_gradient = normalize_vjp(required, output, drop(cotangent, dropout.norm), configuration)
        *others, x_gradient = pullback(x, drop(output_gradient, dropout.output))
        return SublayerGradients(norm_gradient, None, tuple(others)), add(cotangent, x_gradient)
    normalized = drop(normalize_if(norm, x, configuration), dropout.norm)
    given = None if output_norm is None else drop(function(normalized), dropout.output)
    output_norm_gradient, output_gradient = normalize_if_vjp(output_norm, given, cotangent, configuration)
    *others, normalized_gradient = pullback(normalized, drop(output_gradient, dropout.output))
    norm_gradient, x_gradient = normalize_if_vjp(norm, x, drop(normalized_gradient, dropout.norm), configuration)
    return SublayerGradients(norm_gradient, output_norm_gradient, tuple(others)), add(cotangent, x_gradient)


def parallel_vjp(
    sublayers: list[tuple[Sublayer, Pullback]],
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E"],
    configuration: Configuration,
) -> tuple[list[SublayerGradients], Float[np.ndarray, "B T E"]]:
    """Gradients of all that the two sublayers have, and of x, for `parallel`."""
    (attention, _), (position_wise, _) = sublayers
    normalized = normalize_if(attention.norm, x, configuration)
    other = normalized if position_wise.norm is None else normalize(position_wise.norm, x, configuration)
    others, backward = [], []
    for (sublayer, pullback), given in zip(sublayers, (normalized, other), strict=True):
        dropout = sublayer.dropout
        *parts, gradient = pullback(drop(given, dropout.norm), drop(cotangent, dropout.output))
        others.append(tuple(parts))
        backward.append(drop(gradient, dropout.norm))
    if position_wise.norm is None:
        first, x_gradient = normalize_if_vjp(attention.norm, x, add(*backward), configuration)
        second = None
    else:
        first, as_first = normalize_if_vjp(attention.norm, x, backward[0], configuration)
        second, as_second = normalize_vjp(position_wise.norm, x, backward[1], configuration)
        x_gradient = add(as_first, as_second)
    gradients = [SublayerGradients(first, None, others[0]), SublayerGradients(second, None, others[1])]
    return gradients, add(cotangent, x_gradient)


def self_attention(
    parameters: MultiHeadAttention,
    mask: Any,
    dropout: Dropout | None,
    configuration: Configuration,
    layer: Any,
    bias: Any,
    rotation: Any,
) -> tuple[Callable[[Any], Any], Pullback]:
    """Attention of x to itself: what it receives as queries and as keys and values is added up; then the bias."""

    def pullback(x: Any, cotangent: Any) -> tuple[Any, ...]:
        gradient, as_query, as_memory, of_bias = attend_vjp(
            parameters, x, x, mask, dropout, configuration, cotangent, layer, bias, rotation
        )
        return gradient, of_bias, add(as_query, as_memory)

    return lambda x: attend(parameters, x, x, mask, dropout, configuration, layer, bias, rotation), pullback


def cross_attention(
    parameters: MultiHeadAttention, memory: Any, mask: Any, dropout: Dropout | None, configuration: Configuration
) -> tuple[Callable[[Any], Any], Pullback]:
    """Attention of x to memory, whose gradient comes second."""

    def pullback(x: Any, cotangent: Any) -> tuple[Any, ...]:
        gradient, as_query, as_memory, _ = attend_vjp(parameters, x, memory, mask, dropout, configuration, cotangent)
        return gradient, as_memory, as_query

    return lambda x: attend(parameters, x, memory, mask, dropout, configuration), pullback


def position_wise(
    parameters: FeedForward | GatedFeedForward, dropout: Dropout | None, configuration: Configuration
) -> tuple[Callable[[Any], Any], Pullback]:
    """The feed-forward network."""
    return (
        lambda x: transform(parameters, x, dropout, configuration),
        lambda x, cotangent: transform_vjp(parameters, x, dropout, configuration, cotangent),
    )


def through_vjp(
    sublayers: list[tuple[Sublayer, Pullback]], x: Any, cotangent: Any, configuration: Configuration
) -> tuple[list[SublayerGradients], Any]:
    """Gradients of every sublayer, in order, and that of x, for `through`."""
    if configuration.norm_order == "parallel":
        return parallel_vjp(sublayers, x, cotangent, configuration)
    inputs = [x]
    for sublayer, _ in sublayers[:-1]:
        inputs.append(residual(sublayer, inputs[-1], configuration))
    gradients = []
    for (sublayer, pullback), given in zip(reversed(sublayers), reversed(inputs), strict=True):
        gradient, cotangent = residual_vjp(sublayer, pullback, given, cotangent, configuration)
        gradients.append(gradient)
    return gradients[::-1], cotangent


# --- blocks -----------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def encoder_block_vjp(
    parameters: EncoderBlock,
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Any = None,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[np.ndarray, "..."] | None = None,
    rotation: Rotation | None = None,
    dropout: EncoderBlockDropout = EncoderBlockDropout(),
) -> EncoderBlockGradients:
    """Compute the gradients of parameters, x and bias (ATT-12).

    Args:
        parameters, x: As in `encoder_block`.
        cotangent: Gradient with respect to the result of `encoder_block`, [B, T, E], in its dtype.
        configuration, mask, layer, bias, rotation, dropout: As in `encoder_block`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `encoder_block`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, EncoderBlock)
    checks.sites(dropout, EncoderBlockDropout)
    checks.norms(parameters, configuration)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    p, d = parameters, dropout
    inner = d.attention.inner
    attended, attended_back = self_attention(p.attention, mask, inner, configuration, layer, bias, rotation)
    transformed, transformed_back = position_wise(p.feed_forward, d.feed_forward.inner, configuration)
    sublayers = [
        (Sublayer(attended, p.attention_norm, d.attention, p.attention_output_norm), attended_back),
        (Sublayer(transformed, p.feed_forward_norm, d.feed_forward, p.feed_forward_output_norm), transformed_back),
    ]
    (first, last), x_gradient = through_vjp(sublayers, x, cotangent, configuration)
    (attention_gradient, bias_gradient), (feed_forward_gradient,) = first.others, last.others
    found = EncoderBlock(
        attention_gradient, first.norm, feed_forward_gradient, last.norm, first.output_norm, last.output_norm
    )
    return EncoderBlockGradients(found, x_gradient, bias_gradient)


@np.errstate(all="ignore")
def decoder_block_vjp(
    parameters: DecoderBlock,
    x: Float[np.ndarray, "B T E"],
    memory: Float[np.ndarray, "B S E"] | None,
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Any = None,
    memory_mask: Any = None,
    layer: AttentionLayer = AttentionLayer(),
    bias: Float[np.ndarray, "..."] | None = None,
    rotation: Rotation | None = None,
    dropout: DecoderBlockDropout = DecoderBlockDropout(),
) -> DecoderBlockGradients:
    """Compute the gradients of parameters, x, memory and bias (ATT-12).

    Args:
        parameters, x, memory: As in `decoder_block`.
        cotangent: Gradient with respect to the result of `decoder_block`, [B, T, E], in its dtype.
        configuration, mask, memory_mask, layer, bias, rotation, dropout: As in `decoder_block`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `decoder_block`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, DecoderBlock)
    checks.decoder_sites(parameters, dropout)
    checks.memory(parameters, memory)
    checks.norms(parameters, configuration)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    p, d = parameters, dropout
    inner = d.self_attention.inner
    attended, attended_back = self_attention(p.self_attention, mask, inner, configuration, layer, bias, rotation)
    transformed, transformed_back = position_wise(p.feed_forward, d.feed_forward.inner, configuration)
    sublayers = [
        (Sublayer(attended, p.self_attention_norm, d.self_attention, p.self_attention_output_norm), attended_back),
        (Sublayer(transformed, p.feed_forward_norm, d.feed_forward, p.feed_forward_output_norm), transformed_back),
    ]
    if p.cross_attention is not None:
        inner = d.cross_attention.inner
        crossed, crossed_back = cross_attention(p.cross_attention, memory, memory_mask, inner, configuration)
        sublayers.insert(1, (Sublayer(crossed, p.cross_attention_norm, d.cross_attention), crossed_back))
    (first, *between, last), x_gradient = through_vjp(sublayers, x, cotangent, configuration)
    middle = between[0] if between else SublayerGradients(None, None, (None, None))
    (self_gradient, bias_gradient), (cross_gradient, memory_gradient) = first.others, middle.others
    (feed_forward_gradient,) = last.others
    found = DecoderBlock(
        self_gradient, first.norm, cross_gradient, middle.norm, feed_forward_gradient, last.norm,
        first.output_norm, last.output_norm,
    )  # fmt: skip
    return DecoderBlockGradients(found, x_gradient, memory_gradient, bias_gradient)
