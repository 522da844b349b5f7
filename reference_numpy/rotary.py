"""Rotary position embeddings, defined (rules POS-3, POS-4; Su et al., arXiv 2104.09864)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.tape import operation
from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.frequencies import DIGIT_BITS, attention_factor, exact_frequencies, turn_digits
from specification.rotary import Scaling

__all__ = ["rotary_embedding", "rotary_frequencies"]


def rotary_embedding(
    x: Float[np.ndarray, "B H T D"],
    positions: Integer[np.ndarray, "..."],
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    pairing: str = "halves",
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Float[np.ndarray, "B H T D"]:
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
    length = checks.rotary_length(scaling, length, positions)
    sine, cosine = rotary_table(positions, width, base, scaling, length, compute_dtype_name(dtype_name(x)))
    return rotate(x, sine, cosine, pairing)


def rotary_table(
    positions: np.ndarray, width: int, base: float, scaling: Scaling | None, length: int | None, dtype: str
) -> tuple[Any, Any]:
    """Sine and cosine of every angle times the attention factor, [1, T, W / 2] or [B, 1, T, W / 2]."""
    digits, attention_factor = constants(width, float(base), scaling, length)
    return sine_and_cosine(positions, digits, attention_factor, dtype)


def constants(width: int, base: float, scaling: Scaling | None, length: int | None) -> tuple[np.ndarray, float]:
    """`turn_digits`, [6, W / 2], and the attention factor."""
    return np.array(turn_digits(width, base, scaling, length)), attention_factor(scaling)


def sine_and_cosine(positions: np.ndarray, digits: np.ndarray, attention_factor: float, dtype: str) -> tuple[Any, Any]:
    """Sine and cosine of the angles position * frequency, times the attention factor."""
    positions = positions[..., None, :, None].astype(np.int64)
    quarter, angle = turned(positions, digits, np.dtype(dtype).type)
    sine, cosine = np.sin(angle), np.cos(angle)
    odd, half = quarter % 2 == 1, quarter // 2 % 2 == 1
    sine, cosine = np.where(odd, cosine, sine), np.where(odd, -sine, cosine)
    factor = np.where(half, -1, 1).astype(dtype) * sine.dtype.type(attention_factor)
    return sine * factor, cosine * factor


def turned(positions: np.ndarray, digits: np.ndarray, dtype: type[np.floating]) -> tuple[Any, Any]:
    """The angle position * frequency as a number of quarter turns and an angle in [-pi / 4, pi / 4].

    digits: the frequency as a fraction of a turn (`turn_digits`). Position and fraction are multiplied digit by digit,
    as on paper: the product is exact but for whole turns, which are dropped. Only the angle is rounded.
    """
    low, high = positions & 2**DIGIT_BITS - 1, positions >> DIGIT_BITS
    product, carry, below = [], 0, 0
    for digit in digits[::-1]:
        column = digit * low + below * high + carry
        product.append(column & 2**DIGIT_BITS - 1)
        carry, below = column >> DIGIT_BITS, digit
    quarter = (product[-1] + 2 ** (DIGIT_BITS - 3)) >> (DIGIT_BITS - 2)
    product[-1] = product[-1] - (quarter << (DIGIT_BITS - 2))
    turn = 0
    for digit in product:
        turn = (turn + digit.astype(dtype)) * dtype(2.0**-DIGIT_BITS)
    return quarter, turn * dtype(2 * math.pi)


@operation
@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def rotate(x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str) -> Any:
    """(first cos - second sin, second cos + first sin) for every pair of columns; columns past the width copied."""
    width = 2 * sine.shape[-1]
    shape, axis = ((2, width // 2), -2) if pairing == "halves" else ((width // 2, 2), -1)
    first, second = np.moveaxis(widen(x[..., :width]).reshape(*x.shape[:-1], *shape), axis, 0)
    pairs = np.stack([first * cosine - second * sine, second * cosine + first * sine], axis)
    return np.concatenate([pairs.reshape(*x.shape[:-1], width).astype(x.dtype), x[..., width:]], axis=-1)


def rotary_frequencies(
    width: int, base: float = 10000.0, scaling: Scaling | None = None, *, length: int | None = None
) -> tuple[Float[np.ndarray, "pairs"], float]:
    """Compute the angle by which each pair turns from one position to the next (POS-4).

    Args:
        width: W, even: the number of columns that turn.
        base: Of the frequencies base^(-2p / W), above 1.
        scaling: Of the frequencies, or None.
        length: Of the sequence, where the scaling depends on it; None counts as its `original_length`.

    Returns:
        float64 [W / 2], each rounded once, and the factor of sine and cosine.

    Raises:
        TypeError: Structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.rotary_frequencies(width, base, scaling, length)
    frequencies = exact_frequencies(width, float(base), scaling, length)
    return np.array([float(frequency) for frequency in frequencies]), attention_factor(scaling)
