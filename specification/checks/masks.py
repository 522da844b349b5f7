"""Checks on mask descriptions and what they hold (MASK-1 to MASK-5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specification.checks.arguments import (
    boolean,
    distance,
    in_range,
    integer,
    natural,
    pair_shape,
    ranked,
    whole_number,
)
from specification.dtypes import dtype_name
from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Or, Segments, SlidingWindow

__all__ = ["mask", "mask_values"]


def offset_given(description: Causal | SlidingWindow, query_length: int, key_length: int) -> None:
    """Check that a mask has an offset where there are not as many queries as keys (MASK-3).

    Args:
        description: a causal mask or a window.
        query_length: the number of queries.
        key_length: the number of keys.

    Raises:
        ValueError: for a mask without one.
    """
    if description.offset is None and query_length != key_length:
        name = type(description).__name__
        raise ValueError(
            f"{name} needs an offset when there are {query_length} queries and {key_length} keys: offset=0 aligns the "
            f"first query with the first key, offset={key_length - query_length} the last query with the last key"
        )


def offset_type(offset: Any, batch: int | None) -> None:
    """Check an offset: an integer, or one for each batch element (MASK-3).

    Args:
        offset: an integer, an array [B], or None.
        batch: the batch size, or None for any.

    Raises:
        TypeError: for what is no integer.
        ValueError: for another shape, and for integers beyond 2**30.
    """
    if offset is not None and getattr(offset, "shape", ()) != ():
        per_batch("offset", offset, batch)
    elif offset is not None:
        in_range("offset", whole_number("offset", offset))


def per_batch(name: str, array: Any, batch: int | None) -> None:
    """Check an integer array with one number for each batch element.

    Args:
        name: what messages call it.
        array: [B].
        batch: the batch size, or None for any.

    Raises:
        TypeError: for another dtype.
        ValueError: for another shape.
    """
    integer(name, array)
    (size,) = ranked(name, array, "batch")
    if batch is not None and size != batch:
        raise ValueError(f"{name} must have shape [{batch}], got [{size}]")


def batch_by_length(name: str, array: Any, batch: int | None, length: int, *, shared: bool) -> None:
    """Check the shape of an array with a row for each batch element.

    Args:
        name: what messages call it.
        array: [B, length], or [1, length].
        batch: the batch size, or None for any.
        length: the number of columns.
        shared: whether one row may be shared by the whole batch.

    Raises:
        TypeError: for what is no array.
        ValueError: for another shape.
    """
    shape = ranked(name, array, "batch, positions")
    if shape[1] != length or not (batch is None or shape[0] == batch or (shared and shape[0] == 1)):
        rows = "any" if batch is None else f"{batch} or 1" if shared else str(batch)
        raise ValueError(f"{name} must have shape [{rows}, {length}], got {list(shape)}")


def mask(description: Any, query_length: int, key_length: int, batch: int | None, heads: int | None) -> None:
    """Check the shapes and dtypes of everything inside a description (MASK-1 to MASK-5).

    Args:
        description: a mask, or None.
        query_length: the number of queries.
        key_length: the number of keys.
        batch: the batch size, or None for any.
        heads: the number of query heads, or None for any.

    Raises:
        TypeError: for what is no description, and for other dtypes.
        ValueError: for shapes that do not fit, and for an offset that is missing.
    """
    natural("query_length", query_length)
    natural("key_length", key_length)
    if description is None:
        return
    if isinstance(description, And | Or):
        for side in (description.left, description.right):
            mask(side, query_length, key_length, batch, heads)
    elif isinstance(description, Causal | SlidingWindow):
        offset_given(description, query_length, key_length)
        offset_type(description.offset, batch)
        if isinstance(description, SlidingWindow):
            window(description.left, description.right)
    elif isinstance(description, KeyLengths):
        per_batch("lengths", description.lengths, batch)
    elif isinstance(description, KeyPadding):
        boolean("keep", description.keep, NOT_ADDITIVE)
        batch_by_length("keep", description.keep, batch, key_length, shared=False)
    elif isinstance(description, Segments):
        integer("query_ids", description.query_ids)
        integer("key_ids", description.key_ids)
        if dtype_name(description.query_ids) != dtype_name(description.key_ids):  # some pairs have no common integer
            names = f"{dtype_name(description.query_ids)} and {dtype_name(description.key_ids)}"
            raise TypeError(f"query_ids and key_ids must share one dtype, got {names}")
        batch_by_length("query_ids", description.query_ids, batch, query_length, shared=True)
        batch_by_length("key_ids", description.key_ids, batch, key_length, shared=True)
    elif isinstance(description, Dense):
        boolean("mask", description.array, NOT_ADDITIVE)
        pair_shape("mask", description.array, (batch, heads, query_length, key_length))
    else:
        raise TypeError(f"mask must be a description or a boolean array, got {type(description).__name__}")


NOT_ADDITIVE = " (True = may attend; additive numbers are a bias, never a mask)"


def window(left: Any, right: Any) -> None:
    """Check the two reaches of a window.

    Args:
        left: how many keys to the left a query sees, or None for all.
        right: the same to the right.

    Raises:
        TypeError: for what is no integer.
        ValueError: for negative numbers.
    """
    for name, value in (("left", left), ("right", right)):
        if value is not None:
            distance(name, value)


def mask_values(description: Any, key_length: int, readable: Callable[[Any], np.ndarray | None]) -> None:
    """Check the values inside a description, where they can be read: lengths within K, offsets within 2**30.

    Args:
        description: a mask that `mask` has checked, or None.
        key_length: the number of keys.
        readable: gives an array as NumPy's, or None where it cannot be read.

    Raises:
        ValueError: for values out of range.
    """
    if isinstance(description, And | Or):
        mask_values(description.left, key_length, readable)
        mask_values(description.right, key_length, readable)
    elif isinstance(description, KeyLengths) and (lengths := readable(description.lengths)) is not None:
        if lengths.size and (lengths.min() < 0 or lengths.max() > key_length):
            raise ValueError(f"lengths must lie between 0 and {key_length} keys, got {lengths.tolist()}")
    elif isinstance(description, Causal | SlidingWindow) and hasattr(description.offset, "shape"):
        offsets = readable(description.offset)
        if offsets is not None and offsets.size:
            in_range("offset", int(offsets.min()))
            in_range("offset", int(offsets.max()))
