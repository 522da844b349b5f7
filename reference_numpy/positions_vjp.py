"""Gradients of the operations in `positions.py` that have one, by hand."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen
from reference_numpy.positions import buckets_of
from reference_numpy.tape import gradient_of
from specification import checks
from specification.dtypes import dtype_name

__all__ = ["learned_positions_vjp", "relative_position_bias_vjp"]


@gradient_of("table")
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


@gradient_of("table")
def relative_position_bias_vjp(
    table: Float[np.ndarray, "N H"],
    query_length: int,
    key_length: int,
    cotangent: Float[np.ndarray, "1 H Q K"],
    *,
    bidirectional: bool,
    furthest: int = 128,
    offset: int = 0,
) -> Float[np.ndarray, "N H"]:
    """Compute the gradient of the table: each row adds up what its pairs of queries and keys received (POS-6).

    Args:
        table, query_length, key_length: As in `relative_position_bias`.
        cotangent: Gradient with respect to the result of `relative_position_bias`, [1, H, Q, K], in its dtype.
        bidirectional, furthest, offset: As in `relative_position_bias`.

    Returns:
        A new array [N, H] in the dtype of table.

    Raises:
        TypeError, ValueError: As in `relative_position_bias`, and for a cotangent in another shape or dtype than its
            result.
    """
    checks.relative_position_bias(table, query_length, key_length, bidirectional, furthest, offset)
    checks.cotangent(cotangent, (1, table.shape[1], query_length, key_length), dtype_name(table))
    bucket = buckets_of(query_length, key_length, offset, table.shape[0], bidirectional, furthest)
    gradient = np.zeros_like(widen(table))
    np.add.at(gradient, bucket, np.moveaxis(widen(cotangent)[0], 0, -1))
    return gradient.astype(table.dtype)
