"""Frequencies of the sinusoidal position encoding (POS-1): constants of the definition, not computation on data."""

from __future__ import annotations

import numpy as np

EXPONENTS = ("shared", "doubled")


def angular_frequencies(width: int, exponent: str) -> np.ndarray:
    """Compute the factors that turn a position into each column's angle (POS-1).

    Args:
        width: the number of columns.
        exponent: "shared" for 10000^(-2i/E) in the columns 2i and 2i+1, or "doubled" for 10000^(-2c/E) in column c.

    Returns:
        float64 [width].
    """
    column = np.arange(width)
    power = column if exponent == "doubled" else column // 2
    return 10000.0 ** (-2.0 * power / max(width, 1))
