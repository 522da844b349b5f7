"""Rotary position embeddings in PyTorch (rules POS-3, POS-4), as `reference_numpy/rotary.py` defines them."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from jaxtyping import Float, Integer

from specification import checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.frequencies import DIGIT_BITS, attention_factor, exact_frequencies, turn_digits
from specification.rotary import Scaling
from torch_impl.dtypes import widen
from torch_impl.masks import capturing, readable

__all__ = ["rotary_embedding", "rotary_frequencies"]


def rotary_embedding(
    x: Float[torch.Tensor, "B H T D"],
    positions: Integer[torch.Tensor, "..."],
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    pairing: str = "halves",
    scaling: Scaling | None = None,
    length: int | None = None,
) -> Float[torch.Tensor, "B H T D"]:
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
    positions: torch.Tensor, width: int, base: float, scaling: Scaling | None, length: int | None, dtype: str
) -> tuple[Any, Any]:
    """Sine and cosine of every angle times the attention factor, [1, T, W / 2] or [B, 1, T, W / 2].

    NaN for positions outside [0, 2**30] that cannot be read (see `masks.readable`).
    """
    digits, attention_factor = constants(*fixed(width, base), scaling, length)
    # Nothing waits for the device. A graph that is captured would read the digits again when they are gone.
    digits = digits.to(positions.device, non_blocking=positions.is_cuda and not capturing())
    return sine_and_cosine(positions, digits, attention_factor, dtype)


def fixed(width: int, base: float) -> tuple[int, float]:
    """The same plain numbers, also where torch.compile, after several calls, traces them as variables."""
    return operator.index(width), float.fromhex(float(base).hex())


def constant_in_graphs(function: Any) -> Any:
    """Mark a function whose results `torch.compile` may take as they are.

    `torch.compiler.assume_constant_result` does no more, but loads the whole compiler, which takes a second or two.
    """
    function._dynamo_marked_constant = True
    return function


@constant_in_graphs
def constants(width: int, base: float, scaling: Scaling | None, length: int | None) -> tuple[torch.Tensor, float]:
    """`turn_digits`, int64 [6, W / 2], and the attention factor."""
    return torch.tensor(turn_digits(width, base, scaling, length)), attention_factor(scaling)


def sine_and_cosine(
    positions: torch.Tensor, digits: torch.Tensor, attention_factor: float, dtype: str
) -> tuple[Any, Any]:
    """Sine and cosine of the angles position * frequency, times the attention factor."""
    positions = positions[..., None, :, None].to(torch.int64)
    quarter, angle = turned(positions, digits, getattr(torch, dtype))
    sine, cosine = torch.sin(angle), torch.cos(angle)
    odd, half = quarter % 2 == 1, quarter // 2 % 2 == 1
    sine, cosine = torch.where(odd, cosine, sine), torch.where(odd, -sine, cosine)
    factor = torch.where(half, -1, 1).to(sine.dtype) * attention_factor
    factor = torch.where((positions >= 0) & (positions <= 2**30), factor, math.nan)
    return sine * factor, cosine * factor


def turned(positions: torch.Tensor, digits: torch.Tensor, dtype: torch.dtype) -> tuple[Any, Any]:
    """The angle position * frequency as a number of quarter turns and an angle in [-pi / 4, pi / 4], rounded once."""
    low, high = positions & 2**DIGIT_BITS - 1, positions >> DIGIT_BITS
    product, carry, below = [], 0, 0
    for digit in digits.flip(0):
        column = digit * low + below * high + carry
        product.append(column & 2**DIGIT_BITS - 1)
        carry, below = column >> DIGIT_BITS, digit
    quarter = (product[-1] + 2 ** (DIGIT_BITS - 3)) >> (DIGIT_BITS - 2)
    product[-1] = product[-1] - (quarter << (DIGIT_BITS - 2))
    turn = 0
    for digit in product:
        turn = (turn + digit.to(dtype)) * 2.0**-DIGIT_BITS
    return quarter, turn * (2 * math.pi)


def rotate(x: torch.Tensor, sine: torch.Tensor, cosine: torch.Tensor, pairing: str) -> Any:
    """(first cos - second sin, second cos + first sin) for every pair of columns; columns past the width copied."""
    width = 2 * sine.shape[-1]
    shape, axis = ((2, width // 2), -2) if pairing == "halves" else ((width // 2, 2), -1)
    first, second = widen(x[..., :width]).reshape(*x.shape[:-1], *shape).unbind(axis)
    pairs = torch.stack([first * cosine - second * sine, second * cosine + first * sine], axis)
    return torch.cat([pairs.reshape(*x.shape[:-1], width).to(x.dtype), x[..., width:]], dim=-1)


def rotary_frequencies(
    width: int, base: float = 10000.0, scaling: Scaling | None = None, *, length: int | None = None
) -> tuple[Float[torch.Tensor, "pairs"], float]:
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
    return rounded_frequencies(*fixed(width, base), scaling, length)


@constant_in_graphs
def rounded_frequencies(width: int, base: float, scaling: Scaling | None, length: int | None) -> Any:
    """What `rotary_frequencies` returns, from checked arguments."""
    frequencies = [float(frequency) for frequency in exact_frequencies(width, base, scaling, length)]
    return torch.tensor(frequencies, dtype=torch.float64), attention_factor(scaling)
