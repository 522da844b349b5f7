"""Gradients of the operations in `latent_attention.py`: of its own steps by hand, of their composition by a tape.

A gradient of several parts, as that of a latent in the absorbed form, which is key and value, is rounded in each part
and in the sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen
from reference_numpy.latent_attention import latent_attention, project_heads
from reference_numpy.tape import gradient_of, vjp
from specification import LatentAttention

__all__ = ["LatentAttentionGradients", "latent_attention_vjp"]


class LatentAttentionGradients(NamedTuple):
    """In the structures, shapes and dtypes of the arguments."""

    parameters: LatentAttention
    x: Any


@gradient_of("x")
def take_columns_vjp(x: np.ndarray, start: int, end: int, cotangent: np.ndarray) -> Any:
    """The cotangent in the columns that were taken, 0 in all others."""
    gradient = np.zeros_like(x)
    gradient[..., start:end] = cotangent
    return gradient


@gradient_of("x", "shared")
def append_columns_vjp(x: np.ndarray, shared: np.ndarray, cotangent: np.ndarray) -> tuple[Any, Any]:
    """The cotangent's columns; those of one head for all are added up over the heads, and rounded once."""
    own, others = cotangent[..., : x.shape[-1]], cotangent[..., x.shape[-1] :]
    if shared.shape[1] == 1:
        others = np.sum(widen(others), axis=1, keepdims=True).astype(shared.dtype)
    return own, others


@gradient_of("weight")
def key_weights_vjp(weight: np.ndarray, num_heads: int, width: int, cotangent: Float[np.ndarray, "H D C"]) -> Any:
    """The cotangent in the columns of the keys, 0 in those of the values."""
    gradient = np.zeros((weight.shape[0], num_heads, weight.shape[1] // num_heads), weight.dtype)
    gradient[..., :width] = cotangent.transpose(2, 0, 1)
    return gradient.reshape(weight.shape)


@gradient_of("weight")
def value_weights_vjp(weight: np.ndarray, num_heads: int, width: int, cotangent: Float[np.ndarray, "H C V"]) -> Any:
    """The cotangent in the columns of the values, 0 in those of the keys."""
    gradient = np.zeros((weight.shape[0], num_heads, weight.shape[1] // num_heads), weight.dtype)
    gradient[..., width:] = cotangent.swapaxes(0, 1)
    return gradient.reshape(weight.shape)


@gradient_of("weights", "x")
def project_heads_vjp(
    weights: Float[np.ndarray, "H I O"], x: Float[np.ndarray, "B H T I"], cotangent: Float[np.ndarray, "B H T O"]
) -> tuple[Any, Any]:
    """Gradients of the weights, summed over batch and tokens in one sum, and of x."""
    (B, H, T, inner), outer = x.shape, cotangent.shape[-1]
    rows, columns = widen(x).swapaxes(0, 1), widen(cotangent).swapaxes(0, 1)
    products = rows.reshape(H, B * T, inner).swapaxes(1, 2) @ columns.reshape(H, B * T, outer)
    return products.astype(weights.dtype), project_heads(weights.swapaxes(1, 2), cotangent)


def latent_attention_vjp(
    parameters: LatentAttention,
    x: Float[np.ndarray, "B T E"],
    cotangent: Float[np.ndarray, "B T E_out"],
    *,
    num_heads: int,
    **options: Any,
) -> LatentAttentionGradients:
    """Compute the gradients of parameters and x (MLA-1, MLA-2).

    Args:
        parameters, x: As in `latent_attention`.
        cotangent: Gradient with respect to the result of `latent_attention`, [B, T, E_out], in its dtype.
        num_heads, **options: As in `latent_attention`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `latent_attention`, and for a cotangent in another shape or dtype than its result.
    """
    return LatentAttentionGradients(
        **vjp(latent_attention, {"parameters": parameters, "x": x}, cotangent, num_heads=num_heads, **options)
    )
