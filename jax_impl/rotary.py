"""Rotary position embeddings in JAX (rules POS-3, POS-4; Su et al., arXiv 2104.09864)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from jax_impl.dtypes import cast, widen
from jax_impl.masks import readable
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.frequencies import DIGIT_BITS, attention_factor, exact_frequencies, turn_digits
from specification.rotary import Scaling

__all__ = ["rotary_embedding", "rotary_frequencies"]


def rotary_embedding(
    x: Float[jax.Array, "B H T D"],
    positions: Integer[jax.Array, "..."],
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    pairing: str = "halves",
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Float[jax.Array, "B H T D"]:
    """Turn each pair of columns by position * frequency, and round once (POS-3).

    Args:
        x: [B, H, T, D], in float16, bfloat16, float32 or float64.
        positions: Integers in [0, 2**30], [T] for all rows or [B, T].
        base: Of the frequencies base^(-2p / W), above 1.
        rotary_width: W, even: the first W columns turn, the others are copied. None is D.
        pairing: "halves": p and p + W / 2 are a pair; "interleaved": 2p and 2p + 1 are.
        scaling: Of the frequencies, and of sine and cosine (POS-4).
        length: Of the sequence, where the scaling depends on it; None is the largest position + 1.

    Returns:
        A new array [B, H, T, D] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    width = checks.rotary_embedding(x, positions, base, rotary_width, pairing, scaling, length)
    length = checks.rotary_length(scaling, length, readable(positions))
    sine, cosine = rotary_table(positions, width, base, scaling, length, compute_dtype_name(dtype_name(x)))
    return rotate(x, sine, cosine, pairing)


def rotary_table(
    positions: np.ndarray | jax.Array, width: int, base: float, scaling: Scaling | None, length: int | None, dtype: str
) -> tuple[Any, Any]:
    """Sine and cosine of every angle times the attention factor, [1, T, W / 2] or [B, 1, T, W / 2].

    NaN for traced positions outside [0, 2**30].
    """
    digits, attention_factor = constants(width, float(base), scaling, length)
    return sine_and_cosine(positions, digits, attention_factor, dtype)


def constants(width: int, base: float, scaling: Scaling | None, length: int | None) -> tuple[np.ndarray, float]:
    """`turn_digits`, [6, W / 2], and the attention factor."""
    return np.array(turn_digits(width, base, scaling, length), np.uint32), attention_factor(scaling)


@partial(jax.jit, static_argnames="dtype")
def sine_and_cosine(
    positions: jax.Array, digits: jax.Array, attention_factor: float | jax.Array, dtype: str
) -> tuple[Any, Any]:
    """Sine and cosine of the angles position * frequency, times the attention factor."""
    positions = jnp.asarray(positions)[..., None, :, None]
    if positions.dtype.itemsize < 4:  # int8 and int16 do not hold 2**30
        positions = positions.astype(jnp.int32)
    quarter, angle = turned(positions.astype(jnp.uint32), digits, dtype)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    odd, half = quarter % 2 == 1, quarter // 2 % 2 == 1
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, -sine, cosine)
    factor = jnp.where(half, -1, 1).astype(dtype) * attention_factor
    factor = jnp.where((positions >= 0) & (positions <= 2**30), factor, jnp.nan)
    return sine * factor, cosine * factor


def turned(positions: jax.Array, digits: jax.Array, dtype: str) -> tuple[Any, Any]:
    """The angle position * frequency as a number of quarter turns and an angle in [-pi / 4, pi / 4], rounded once."""
    low, high = positions & 2**DIGIT_BITS - 1, positions >> DIGIT_BITS
    product, carry, below = [], 0, 0
    for digit in digits[::-1]:
        column = digit * low + below * high + carry
        product.append((column & 2**DIGIT_BITS - 1).astype(jnp.int32))
        carry, below = column >> DIGIT_BITS, digit
    quarter = (product[-1] + 2 ** (DIGIT_BITS - 3)) >> (DIGIT_BITS - 2)
    product[-1] = product[-1] - (quarter << (DIGIT_BITS - 2))
    turn = 0
    for digit in product:
        turn = (turn + digit.astype(dtype)) * 2.0**-DIGIT_BITS
    return quarter, turn * (2 * math.pi)


@partial(jax.jit, static_argnames="pairing")
def rotate(x: jax.Array, sine: jax.Array, cosine: jax.Array, pairing: str) -> Any:
    """(first cos - second sin, second cos + first sin) for every pair of columns; columns past the width copied."""
    width = 2 * sine.shape[-1]
    shape, axis = ((2, width // 2), -2) if pairing == "halves" else ((width // 2, 2), -1)
    first, second = jnp.moveaxis(widen(x[..., :width]).reshape(*x.shape[:-1], *shape), axis, 0)
    pairs = jnp.stack([first * cosine - second * sine, second * cosine + first * sine], axis)
    turning = cast(pairs.reshape(*x.shape[:-1], width), x.dtype)
    return jnp.concatenate([turning, jnp.asarray(x[..., width:])], axis=-1)


def rotary_frequencies(
    width: int, base: float = 10000.0, scaling: Scaling | None = None, *, length: int | None = None
) -> tuple[Float[jax.Array, "pairs"], float]:
    """Compute the angle by which each pair turns from one position to the next (POS-4).

    Args:
        width: W, even: the number of columns that turn.
        base: Of the frequencies base^(-2p / W), above 1.
        scaling: Of the frequencies, or None.
        length: Of the sequence, where the scaling depends on it; None counts as its `original_length`.

    Returns:
        [W / 2], each rounded once, to float32 unless `jax.enable_x64` is on, and the factor of sine and cosine.

    Raises:
        TypeError: Structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.rotary_frequencies(width, base, scaling, length)
    frequencies = exact_frequencies(width, float(base), scaling, length)
    return jnp.asarray([float(frequency) for frequency in frequencies]), attention_factor(scaling)
