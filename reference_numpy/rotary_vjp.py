"""Gradients of `rotary_embedding` and of the rotation in it, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from reference_numpy.rotary import rotary_table, rotate
from reference_numpy.tape import gradient_of
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.rotary import Scaling

__all__ = ["rotary_embedding_vjp"]


def rotary_embedding_vjp(
    x: Float[np.ndarray, "B H T D"],
    positions: Integer[np.ndarray, "..."],
    cotangent: Float[np.ndarray, "B H T D"],
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    pairing: str = "halves",
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Float[np.ndarray, "B H T D"]:
    """Compute the gradient of x: the cotangent turned back, times the attention factor, rounded once (POS-3).

    Args:
        x, positions: As in `rotary_embedding`.
        cotangent: Gradient with respect to the result of `rotary_embedding`, in the shape and dtype of x.
        base, rotary_width, pairing, scaling, length: As in `rotary_embedding`.

    Returns:
        A new array [B, H, T, D] in the dtype of x.

    Raises:
        TypeError, ValueError: As in `rotary_embedding`, and for a cotangent in another shape or dtype than its result.
    """
    width = checks.rotary_embedding(x, positions, base, rotary_width, pairing, scaling, length)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    length = checks.rotary_length(scaling, length, positions)
    sine, cosine = rotary_table(positions, width, base, scaling, length, compute_dtype_name(dtype_name(x)))
    return rotate_vjp(x, sine, cosine, pairing, cotangent)


@gradient_of("x")
def rotate_vjp(x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str, cotangent: np.ndarray) -> Any:
    """The cotangent turned back: a rotation is linear, so it depends on no x."""
    return rotate(cotangent, -sine, cosine, pairing)
