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
    if description.offset is None and query_length != key_length:
        name = type(description).__name__
        raise ValueError(
            f"{name} needs an offset when there are {query_length} queries and {key_length} keys: offset=0 aligns the "
            f"first query with the first key, offset={key_length - query_length} the last query with the last key"
        )


def offset_type(offset: Any, batch: int | None) -> None:
    """An int or one int per batch element (MASK-3)."""
    if offset is not None and getattr(offset, "shape", ()) != ():
        per_batch("offset", offset, batch)
    elif offset is not None:
        in_range("offset", whole_number("offset", offset))


def per_batch(name: str, array: Any, batch: int | None) -> None:
    """An integer array [B]."""
    integer(name, array)
    (size,) = ranked(name, array, "batch")
    if batch is not None and size != batch:
        raise ValueError(f"{name} must have shape [{batch}], got [{size}]")


def batch_by_length(name: str, array: Any, batch: int | None, length: int, *, shared: bool) -> None:
    """An array [B, length], or [1, length] too where one row may be shared by the whole batch."""
    shape = ranked(name, array, "batch, positions")
    if shape[1] != length or not (batch is None or shape[0] == batch or (shared and shape[0] == 1)):
        rows = "any" if batch is None else f"{batch} or 1" if shared else str(batch)
        raise ValueError(f"{name} must have shape [{rows}, {length}], got {list(shape)}")


def mask(description: Any, query_length: int, key_length: int, batch: int | None, heads: int | None) -> None:
    """Shapes and dtypes of everything inside a description (MASK-1 to MASK-5)."""
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
    for name, value in (("left", left), ("right", right)):
        if value is not None:
            distance(name, value)


def mask_values(description: Any, key_length: int, readable: Callable[[Any], np.ndarray | None]) -> None:
    """Values inside a description, where `readable` can give them: lengths within K, offsets within 2**30."""
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
