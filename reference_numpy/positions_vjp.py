"""Gradient of the operation in `positions.py` that has one, by hand."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from specification import checks
from specification.dtypes import dtype_name

__all__ = ["learned_positions_vjp"]


def learned_positions_vjp(
    table: Float[np.ndarray, "N E"], length: int, cotangent: Float[np.ndarray, "length E"], *, offset: int = 0
) -> Float[np.ndarray, "N E"]:
    """Compute the gradient of the table: 0 for the rows that were not taken (POS-2).

    Args:
        table, length: As in `learned_positions`.
        cotangent: Gradient with respect to the result of `learned_positions`, [length, E], in its dtype.
        offset: As in `learned_positions`.

    Returns:
        A new array [N, E] in the dtype of table.

    Raises:
        TypeError, ValueError: As in `learned_positions`, and for a cotangent in another shape or dtype than its result.
    """
    checks.learned_positions(table, length, offset)
    checks.cotangent(cotangent, (length, table.shape[1]), dtype_name(table))
    gradient = np.zeros_like(table)
    gradient[offset : offset + length] = cotangent
    return gradient
