"""Gradients of the blocks in `blocks.py`: by a tape, and of a sum and of dropout by hand.

A residual connection hands its cotangent on twice, to x and to the sublayer, and what comes back from both is added up:

    post       s = x + f(x), y = norm(s)            s_bar = norm_vjp(y_bar),  x_bar = s_bar + f_vjp(s_bar)
    pre        n = norm(x), y = x + f(n)            x_bar = y_bar + norm_vjp(f_vjp(y_bar))
    around     n = norm(x), y = x + norm2(f(n))     x_bar = y_bar + norm_vjp(f_vjp(norm2_vjp(y_bar)))
    after      y = x + norm(f(x))                   x_bar = y_bar + f_vjp(norm_vjp(y_bar))
    parallel   y = x + f(norm(x)) + g(norm(x))      x_bar = y_bar + norm_vjp(f_vjp(y_bar) + g_vjp(y_bar))

Gradients of parameters come in the parameters' structure, those of per-head projections joined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.blocks import decoder_block, drop, encoder_block
from reference_numpy.dtypes import widen
from reference_numpy.tape import GRADIENTS, Gradient, gradient_of, vjp
from specification.configuration import AttentionLayer, Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout
from specification.masks import Mask
from specification.parameters import DecoderBlock, EncoderBlock
from specification.rotary import Rotation

__all__ = ["DecoderBlockGradients", "EncoderBlockGradients", "decoder_block_vjp", "encoder_block_vjp"]

GRADIENTS["normalize"] = Gradient(("parameters", "x"))
GRADIENTS["transform"] = Gradient(("parameters", "x"))
GRADIENTS["attend"] = Gradient(("parameters", "x", "memory", "bias"))


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


@gradient_of("x", "y")
def add_vjp(
    x: Float[np.ndarray, "..."], y: Float[np.ndarray, "..."], cotangent: Float[np.ndarray, "..."]
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The cotangent for both, summed over the leading axes that y lacks."""
    axes = tuple(range(x.ndim - y.ndim))
    return cotangent, np.sum(widen(cotangent), axis=axes).astype(y.dtype) if axes else cotangent


@gradient_of("x")
def drop_vjp(
    x: Float[np.ndarray, "..."], dropout: Dropout | None, cotangent: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """The cotangent, dropped where x is."""
    return drop(cotangent, dropout)


def encoder_block_vjp(
    parameters: EncoderBlock,
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    inputs = {"parameters": parameters, "x": x, "bias": bias}
    options: Any = {"mask": mask, "layer": layer, "rotation": rotation, "dropout": dropout}
    return EncoderBlockGradients(**vjp(encoder_block, inputs, cotangent, configuration=configuration, **options))


def decoder_block_vjp(
    parameters: DecoderBlock,
    x: Float[np.ndarray, "B T E"],
    memory: Float[np.ndarray, "B S E"] | None,
    cotangent: Float[np.ndarray, "B T E"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[np.ndarray, "..."] | None = None,
    memory_mask: Mask | Bool[np.ndarray, "..."] | None = None,
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
    inputs = {"parameters": parameters, "x": x, "memory": memory, "bias": bias}
    options: Any = {"mask": mask, "memory_mask": memory_mask, "layer": layer, "rotation": rotation, "dropout": dropout}
    return DecoderBlockGradients(**vjp(decoder_block, inputs, cotangent, configuration=configuration, **options))
