"""Names for the axes of a case's arrays, so that one function can cut and grow the arrays of every operation.

Every axis is a product of dimensions, the outermost first: the query heads of attention are key heads times query heads
to a key head, and the columns of a fused projection are heads times their width. A size of 1 that stands for all of an
axis is the empty product.
"""

from __future__ import annotations

import numpy as np

Axis = tuple[str, ...]
Sizes = dict[str, int]
Arrays = dict[str, tuple[Axis, ...]]

Described = tuple[Sizes, Arrays, dict[str, Axis]]
"""Sizes of all dimensions; axes of inputs, cotangents ("-> output") and options ("option ..."); dimensions of arguments
that are lists of arrays, as "outputs[0]" is an element of one."""

B, Q, K, D, V = (("B",), ("Q",), ("K",), ("D",), ("V",))
HEADS: Axis = ("G", "S")
PAIRS = (B, HEADS, Q, K)
OFFSET = "offset"
"""The first position of a table: a number and no size of an array, and may be 0."""


def leading(array: np.ndarray, trailing: int) -> tuple[tuple[Axis, ...], Sizes]:
    """The axes before the last `trailing` ones: rows, and where there are several, groups of them."""
    shape = array.shape[: array.ndim - trailing]
    names = ["rows", *(f"rows {i}" for i in range(1, len(shape)))][::-1]
    return tuple((name,) for name in names), dict(zip(names, shape, strict=True))
