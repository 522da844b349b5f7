"""Gradient of the operation in `embedding.py`, by hand."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.tape import gradient_of
from specification import checks
from specification.dtypes import dtype_name

__all__ = ["embedding_vjp"]


@gradient_of("table")
def embedding_vjp(
    table: Float[np.ndarray, "N E"],
    ids: Integer[np.ndarray, "..."],
    cotangent: Float[np.ndarray, "... E"],
    *,
    scaled: bool = False,
) -> Float[np.ndarray, "N E"]:
    """Compute the gradient of the table: each row adds up what its occurrences received (EMB-1).

    Args:
        table, ids: As in `embedding`.
        cotangent: Gradient with respect to the result of `embedding`, [..., E], in its dtype.
        scaled: As in `embedding`.

    Returns:
        A new array [N, E] in the dtype of table.

    Raises:
        TypeError, ValueError: As in `embedding`, and for a cotangent in another shape or dtype than its result.
    """
    checks.embedding(table, ids)
    checks.ids_within(ids, table.shape[0])
    checks.cotangent(cotangent, (*ids.shape, table.shape[1]), dtype_name(table))
    gradient = np.zeros_like(widen(table))
    np.add.at(gradient, ids.reshape(-1), widen(cotangent).reshape(ids.size, table.shape[1]))
    return (gradient * math.sqrt(table.shape[1]) if scaled else gradient).astype(table.dtype)
