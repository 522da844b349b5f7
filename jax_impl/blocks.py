"""Encoder and decoder blocks, in JAX (rules BLK-1, BLK-2; "Attention Is All You Need", sections 3.1 and 5.4).

    post-norm   x = norm(x + sublayer(x))        the paper's
    pre-norm    x = x + sublayer(norm(x))        usually with one more norm after the last block

What a block does that its parameters do not say is a `Configuration`. Arrays are [B, T, E] in one dtype, to which every
step (a sublayer, a sum, a norm) rounds; inside a step everything is kept in float32 or wider. Dropout acts where keep
masks are given (see `specification.dropout`), so without them everything here is evaluation.

A block is compiled as a whole, once for all blocks of one shape; the configuration is static. What its masks hold is
checked where a model calls it, and not in here, where it is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jaxtyping import Float

from jax_impl.attention_steps import dropout_factor
from jax_impl.dtypes import cast, widen
from jax_impl.feed_forward import feed_forward
from jax_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from jax_impl.multi_head_attention import multi_head_attention
from specification import checks
from specification.configuration import Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout, SublayerDropout
from specification.parameters import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention, Norm

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
    parameters: Norm, x: Float[jax.Array, "B T E"], configuration: Configuration
) -> Float[jax.Array, "B T E"]:
    """The norm that the configuration names."""
    checks.structure("norm", parameters, Norm)
    if configuration.norm == "layer_norm":
        return layer_norm(x, parameters.weight, parameters.bias, eps=configuration.norm_eps)
    if configuration.norm == "rms_norm":
        checks.no_bias(parameters.bias)
        return rms_norm(x, parameters.weight, eps=configuration.norm_eps)
    return standard_deviation_norm(x, parameters.weight, parameters.bias, eps=configuration.norm_eps)


def attention_options(
    width: int, mask: Any, weights_dropout: Dropout | None, configuration: Configuration
) -> dict[str, Any]:
    """Keywords of `multi_head_attention`, for inputs of that width."""
    keep, rate = (None, 0.0) if weights_dropout is None else weights_dropout
    return {
        "num_heads": configuration.num_heads,
        "mask": mask,
        "scale": None if configuration.scale == "head_width" else 1 / math.sqrt(width),
        "dropout_keep": keep,
        "dropout_rate": rate,
        "empty_rows": configuration.empty_rows,
    }


def attend(
    parameters: MultiHeadAttention,
    x: Float[jax.Array, "B T E"],
    memory: Any,
    mask: Any,
    weights_dropout: Dropout | None,
    configuration: Configuration,
) -> Float[jax.Array, "B T E"]:
    """Multi-head attention of x to memory, which in self-attention is x."""
    options = attention_options(x.shape[-1], mask, weights_dropout, configuration)
    return multi_head_attention(parameters, x, memory, memory, **options)


def transform(
    parameters: FeedForward, x: Float[jax.Array, "B T E"], inner_dropout: Dropout | None, configuration: Configuration
) -> Float[jax.Array, "B T E"]:
    """The feed-forward network, with the activation that the configuration names."""
    keep, rate = (None, 0.0) if inner_dropout is None else inner_dropout
    return feed_forward(parameters, x, activation=configuration.activation, dropout_keep=keep, dropout_rate=rate)


def residual(
    sublayer: Callable[[Float[jax.Array, "B T E"]], Float[jax.Array, "B T E"]],
    x: Float[jax.Array, "B T E"],
    norm: Norm,
    dropout: SublayerDropout,
    configuration: Configuration,
) -> Float[jax.Array, "B T E"]:
    """norm(x + sublayer(x)), or x + sublayer(norm(x)) (BLK-1)."""
    if configuration.norm_order == "post":
        x = add(x, drop(sublayer(x), dropout.output))
        return drop(normalize(norm, x, configuration), dropout.norm)
    normalized = drop(normalize(norm, x, configuration), dropout.norm)
    return add(x, drop(sublayer(normalized), dropout.output))


# --- blocks -----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("configuration",))
def encoder_block(
    parameters: EncoderBlock,
    x: Float[jax.Array, "B T E"],
    *,
    configuration: Configuration,
    mask: Any = None,
    dropout: EncoderBlockDropout = EncoderBlockDropout(),
) -> Float[jax.Array, "B T E"]:
    """Apply self-attention, then the feed-forward network, each with residual connection and norm (BLK-1).

    Args:
        parameters: Of the block, in the dtype of x.
        x: [B, T, E].
        configuration: What the parameters do not say.
        mask: Who attends to whom, a description or a boolean array.
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, E] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, EncoderBlock)
    checks.sites(dropout, EncoderBlockDropout)

    def attention(x: Any) -> Any:
        return attend(parameters.attention, x, x, mask, dropout.attention.inner, configuration)

    def position_wise(x: Any) -> Any:
        return transform(parameters.feed_forward, x, dropout.feed_forward.inner, configuration)

    x = residual(attention, x, parameters.attention_norm, dropout.attention, configuration)
    return residual(position_wise, x, parameters.feed_forward_norm, dropout.feed_forward, configuration)


@partial(jax.jit, static_argnames=("configuration",))
def decoder_block(
    parameters: DecoderBlock,
    x: Float[jax.Array, "B T E"],
    memory: Float[jax.Array, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Any = None,
    memory_mask: Any = None,
    dropout: DecoderBlockDropout = DecoderBlockDropout(),
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
        dropout: For every place with dropout, what is kept and the rate. The caller draws it (BLK-2).

    Returns:
        A new array [B, T, E] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.structure("parameters", parameters, DecoderBlock)
    checks.decoder_sites(parameters, dropout)
    checks.memory(parameters, memory)
    cross: Any = parameters.cross_attention
    cross_norm: Any = parameters.cross_attention_norm

    def self_attention(x: Any) -> Any:
        return attend(parameters.self_attention, x, x, mask, dropout.self_attention.inner, configuration)

    def cross_attention(x: Any) -> Any:
        inner = dropout.cross_attention.inner
        return attend(cross, x, memory, memory_mask, inner, configuration)

    def position_wise(x: Any) -> Any:
        return transform(parameters.feed_forward, x, dropout.feed_forward.inner, configuration)

    x = residual(self_attention, x, parameters.self_attention_norm, dropout.self_attention, configuration)
    if cross is not None:
        x = residual(cross_attention, x, cross_norm, dropout.cross_attention, configuration)
    return residual(position_wise, x, parameters.feed_forward_norm, dropout.feed_forward, configuration)
