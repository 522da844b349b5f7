"""Embedding of token ids, defined (rule EMB-1; "Attention Is All You Need", section 3.4)."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.tape import operation
from specification import checks

__all__ = ["embedding"]


@operation
def embedding(
    table: Float[np.ndarray, "N E"], ids: Integer[np.ndarray, "..."], *, scaled: bool = False
) -> Float[np.ndarray, "... E"]:
    """Take row ids[...] of the table; multiply it by sqrt(E) when `scaled`, and round once (EMB-1).

    Differs from the paper in that sqrt(E) is applied only when asked for.

    Args:
        table: [N, E], in float16, bfloat16, float32 or float64.
        ids: Integers in [0, N), in any shape. Negative ids do not count from the end.
        scaled: Whether rows are multiplied by sqrt(E).

    Returns:
        A new array [..., E] in the dtype of table.

    Raises:
        TypeError: ids that are not integers, or another dtype of the table.
        ValueError: An id outside [0, N).
    """
    checks.embedding(table, ids)
    check_rows(table, ids)
    rows = np.take(table, ids, axis=0)
    return (widen(rows) * math.sqrt(table.shape[1])).astype(table.dtype) if scaled else rows


def check_rows(table: Float[np.ndarray, "N E"], ids: Integer[np.ndarray, "..."], name: str = "ids") -> None:
    """ValueError for ids that are no rows of the table."""
    checks.ids_within(ids, table.shape[0], name)
