"""Frequencies of the sinusoidal position encoding (POS-1): constants of the definition, not computation on data."""

from __future__ import annotations

import numpy as np

EXPONENTS = ("shared", "doubled")


def angular_frequencies(width: int, exponent: str) -> np.ndarray:
    """The float64 factor, [width], that turns a position into column c's angle.

    "shared": 10000^(-2i/E) for the columns 2i and 2i+1. "doubled": 10000^(-2c/E) for column c.
    """
    column = np.arange(width)
    power = column if exponent == "doubled" else column // 2
    return 10000.0 ** (-2.0 * power / max(width, 1))
