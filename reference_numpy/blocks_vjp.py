"""Gradients of the blocks in `blocks.py`, by hand.

Each `<block>_vjp` takes the block's own arguments and the cotangent of its result. A residual connection hands its
cotangent on twice, to x and to the sublayer, and what comes back from both is added up:

    post-norm   s = x + f(x), y = norm(s)      s_bar = norm_vjp(y_bar),  x_bar = s_bar + f_vjp(s_bar)
    pre-norm    n = norm(x), y = x + f(n)      x_bar = y_bar + norm_vjp(f_vjp(y_bar))

Gradients of parameters come in the parameters' structure, those of per-head projections joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from reference_numpy import blocks
from reference_numpy.blocks import add, attend, attention_options, drop, normalize, residual, transform
from reference_numpy.feed_forward_vjp import feed_forward_vjp
from reference_numpy.layer_norm_vjp import layer_norm_vjp, rms_norm_vjp, standard_deviation_norm_vjp
from reference_numpy.multi_head_attention_vjp import multi_head_attention_vjp
from specification import checks
from specification.configuration import Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout, SublayerDropout
from specification.dtypes import dtype_name
from specification.parameters import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention, Norm

__all__ = ["DecoderBlockGradients", "EncoderBlockGradients", "decoder_block_vjp", "encoder_block_vjp"]


class EncoderBlockGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments."""

    parameters: EncoderBlock
    x: Any


class DecoderBlockGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments; memory is None where none was given."""

    parameters: DecoderBlock
    x: Any
    memory: Any


# --- the pieces -------------------------------------------------------------------------------------------------------


def normalize_vjp(
    parameters: Norm, x: Float[np.ndarray, "B T E"], cotangent: Float[np.ndarray, "B T E"], configuration: Configuration
) -> tuple[Norm, Float[np.ndarray, "B T E"]]:
    """Gradients of the parameters and of x, for `normalize`."""
    eps = configuration.norm_eps
    if configuration.norm == "layer_norm":
        gradients = layer_norm_vjp(x, parameters.weight, parameters.bias, cotangent, eps=eps)
    elif configuration.norm == "rms_norm":
        gradients = rms_norm_vjp(x, parameters.weight, cotangent, eps=eps)
    else:
        gradients = standard_deviation_norm_vjp(x, parameters.weight, parameters.bias, cotangent, eps=eps)
    return Norm(gradients.weight, gradients.bias), gradients.x


def attend_vjp(
    parameters: MultiHeadAttention,
    x: Float[np.ndarray, "B T E"],
    memory: Float[np.ndarray, "B S E"],
    mask: Any,
    weights_dropout: Dropout | None,
    configuration: Configuration,
    cotangent: Float[np.ndarray, "B T E"],
) -> tuple[MultiHeadAttention, Float[np.ndarray, "B T E"], Float[np.ndarray, "B S E"]]:
    """Gradients of the parameters, of x as the queries, and of memory as the keys and values, for `attend`."""
    options = attention_options(x.shape[-1], mask, weights_dropout, configuration)
    gradients = multi_head_attention_vjp(parameters, x, memory, memory, cotangent, **options)
    return gradients.parameters, gradients.query, add(gradients.key, gradients.value)


def transform_vjp(
    parameters: FeedForward,
    x: Float[np.ndarray, "B T E"],
    inner_dropout: Dropout | None,
    configuration: Configuration,
    cotangent: Float[np.ndarray, "B T E"],
) -> tuple[FeedForward, Float[np.ndarray, "B T E"]]:
    """Gradients of the parameters and of x, for `transform`."""
    keep, rate = (None, 0.0) if inner_dropout is None else inner_dropout
    gradients = feed_forward_vjp(
        parameters, x, cotangent, activation=configuration.activation, dropout_keep=keep, dropout_rate=rate
    )
    return gradients.parameters, gradients.x


class Sublayer(NamedTuple):
    """A sublayer with its pullback, which gives the gradient of x last, and before it whatever else there is."""

    forward: Callable[[Any], Any]
    pullback: Callable[[Any, Any], tuple[Any, ...]]
    norm: Norm
    dropout: SublayerDropout


def residual_vjp(
    sublayer: Sublayer,
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E"],
    configuration: Configuration,
) -> tuple[Norm, tuple[Any, ...], Float[np.ndarray, "B T E"]]:
    """Gradients of the norm's parameters, of what the sublayer has beside x, and of x, for `residual`."""
    forward, pullback, norm, dropout = sublayer
    if configuration.norm_order == "post":
        total = add(x, drop(forward(x), dropout.output))
        norm_gradient, total_gradient = normalize_vjp(norm, total, drop(cotangent, dropout.norm), configuration)
        *others, x_gradient = pullback(x, drop(total_gradient, dropout.output))
        return norm_gradient, tuple(others), add(total_gradient, x_gradient)
    normalized = drop(normalize(norm, x, configuration), dropout.norm)
    *others, normalized_gradient = pullback(normalized, drop(cotangent, dropout.output))
    norm_gradient, x_gradient = normalize_vjp(norm, x, drop(normalized_gradient, dropout.norm), configuration)
    return norm_gradient, tuple(others), add(cotangent, x_gradient)


def self_attention(
    parameters: MultiHeadAttention, norm: Norm, mask: Any, dropout: SublayerDropout, configuration: Configuration
) -> Sublayer:
    """Attention of x to itself: what it receives as queries and as keys and values is added up."""

    def pullback(x: Any, cotangent: Any) -> tuple[Any, ...]:
        gradient, as_query, as_memory = attend_vjp(parameters, x, x, mask, dropout.inner, configuration, cotangent)
        return gradient, add(as_query, as_memory)

    return Sublayer(lambda x: attend(parameters, x, x, mask, dropout.inner, configuration), pullback, norm, dropout)


def cross_attention(
    parameters: MultiHeadAttention,
    norm: Norm,
    memory: Any,
    mask: Any,
    dropout: SublayerDropout,
    configuration: Configuration,
) -> Sublayer:
    """Attention of x to memory, whose gradient comes second."""

    def pullback(x: Any, cotangent: Any) -> tuple[Any, ...]:
        gradient, as_query, as_memory = attend_vjp(parameters, x, memory, mask, dropout.inner, configuration, cotangent)
        return gradient, as_memory, as_query

    return Sublayer(
        lambda x: attend(parameters, x, memory, mask, dropout.inner, configuration), pullback, norm, dropout
    )


def position_wise(
    parameters: FeedForward, norm: Norm, dropout: SublayerDropout, configuration: Configuration
) -> Sublayer:
    """The feed-forward network."""
    return Sublayer(
        lambda x: transform(parameters, x, dropout.inner, configuration),
        lambda x, cotangent: transform_vjp(parameters, x, dropout.inner, configuration, cotangent),
        norm,
        dropout,
    )


def through(sublayers: list[Sublayer], x: Any, cotangent: Any, configuration: Configuration) -> tuple[list[Any], Any]:
    """(norm's gradient, other gradients) of every sublayer in turn, and that of x."""
    inputs = [x]
    for sublayer in sublayers[:-1]:
        inputs.append(
            residual(blocks.Sublayer(sublayer.forward, sublayer.norm, sublayer.dropout), inputs[-1], configuration)
        )
    gradients = []
    for sublayer, given in zip(reversed(sublayers), reversed(inputs), strict=True):
        norm, others, cotangent = residual_vjp(sublayer, given, cotangent, configuration)
        gradients.append((norm, others))
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
    dropout: EncoderBlockDropout = EncoderBlockDropout(),
) -> EncoderBlockGradients:
    """Compute the gradients of parameters and x (ATT-12).

    Args:
        parameters, x: As in `encoder_block`.
        cotangent: Gradient with respect to the result of `encoder_block`, [B, T, E], in its dtype.
        configuration, mask, dropout: As in `encoder_block`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `encoder_block`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, EncoderBlock)
    checks.sites(dropout, EncoderBlockDropout)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    p = parameters
    sublayers = [
        self_attention(p.attention, p.attention_norm, mask, dropout.attention, configuration),
        position_wise(p.feed_forward, p.feed_forward_norm, dropout.feed_forward, configuration),
    ]
    ((attention_norm, (attention,)), (feed_forward_norm, (feed_forward,))), x_gradient = through(
        sublayers, x, cotangent, configuration
    )
    return EncoderBlockGradients(EncoderBlock(attention, attention_norm, feed_forward, feed_forward_norm), x_gradient)


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
    dropout: DecoderBlockDropout = DecoderBlockDropout(),
) -> DecoderBlockGradients:
    """Compute the gradients of parameters, x and memory (ATT-12).

    Args:
        parameters, x, memory: As in `decoder_block`.
        cotangent: Gradient with respect to the result of `decoder_block`, [B, T, E], in its dtype.
        configuration, mask, memory_mask, dropout: As in `decoder_block`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `decoder_block`, and for a cotangent in another shape or dtype than its result.
    """
    checks.structure("parameters", parameters, DecoderBlock)
    checks.decoder_sites(parameters, dropout)
    checks.memory(parameters, memory)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    p, d = parameters, dropout
    cross_norm: Any = p.cross_attention_norm
    first = self_attention(p.self_attention, p.self_attention_norm, mask, d.self_attention, configuration)
    last = position_wise(p.feed_forward, p.feed_forward_norm, d.feed_forward, configuration)
    if p.cross_attention is None:
        gradients, x_gradient = through([first, last], x, cotangent, configuration)
        (self_norm, (self_gradient,)), (last_norm, (last_gradient,)) = gradients
        found = DecoderBlock(self_gradient, self_norm, None, None, last_gradient, last_norm)
        return DecoderBlockGradients(found, x_gradient, None)
    middle = cross_attention(p.cross_attention, cross_norm, memory, memory_mask, d.cross_attention, configuration)
    gradients, x_gradient = through([first, middle, last], x, cotangent, configuration)
    (self_norm, (self_gradient,)), (cross_norm, (cross_gradient, memory_gradient)), (last_norm, (last_gradient,)) = (
        gradients
    )
    found = DecoderBlock(self_gradient, self_norm, cross_gradient, cross_norm, last_gradient, last_norm)
    return DecoderBlockGradients(found, x_gradient, memory_gradient)
