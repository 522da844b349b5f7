"""Position encodings, defined (rules POS-1, POS-2; "Attention Is All You Need", section 3.5)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from specification import checks
from specification.positions import angular_frequencies


def sinusoidal_positions(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
) -> Float[np.ndarray, "length width"]:
    """PE[p, 2i] = sin(p / 10000^(2i/E)), PE[p, 2i+1] = cos of the same angle, for p = offset, ..., offset + length - 1.

    An odd width drops the last cosine. exponent="doubled" is a dialect's reading, in which column c has an angle of its
    own, p / 10000^(2c/E). Returns [length, width] in `dtype`, which is a name such as "float32".
    """
    checks.positions(length, width, offset, exponent, dtype)
    position = np.arange(length) + offset
    angle = position[:, None] * angular_frequencies(width, exponent)
    even = np.arange(width) % 2 == 0
    return np.where(even, np.sin(angle), np.cos(angle)).astype(dtype)


def learned_positions(
    table: Float[np.ndarray, "N E"], length: int, *, offset: int = 0
) -> Float[np.ndarray, "length E"]:
    """Rows offset, ..., offset + length - 1 of the table, as a new array.

    Raises ValueError when they reach past its end.
    """
    checks.learned_positions(table, length, offset)
    return table[offset : offset + length].copy()
