"""Checks on mask descriptions and what they hold (MASK-1 to MASK-5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specification.checks.arguments import distance, natural, position, refuse
from specification.checks.shapes import declare, match
from specification.dtypes import dtype_name
from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Mask, Or, Segments, SlidingWindow

__all__ = ["mask", "mask_values"]

OFFSETS = declare({"offset": 'Integer[Array, "B"]'})
LENGTHS = declare({"lengths": 'Integer[Array, "B"]'})
PADDING = declare({"keep": 'Bool[Array, "B K"]'})
SEGMENTS = declare({"query_ids": 'Integer[Array, "#B Q"]', "key_ids": 'Integer[Array, "#B K"]'})
DENSE = declare({"mask": 'Bool[Array, "Q K"] | Bool[Array, "#B #H Q K"]'})

NOT_ADDITIVE = " (True = may attend; additive numbers are a bias, never a mask)"


def mask(description: Mask | None, query_length: int, key_length: int, batch: int | None, heads: int | None) -> None:
    """Check the shapes and dtypes of everything inside a description (MASK-1 to MASK-5).

    The batch size and the number of query heads may be None for any.
    """
    natural("query_length", query_length)
    natural("key_length", key_length)
    if description is None:
        return
    if isinstance(description, And | Or):
        for side in (description.left, description.right):
            mask(side, query_length, key_length, batch, heads)
    elif isinstance(description, Causal | SlidingWindow):
        check_offset(description, query_length, key_length, batch)
        if isinstance(description, SlidingWindow):
            for name, reach in (("left", description.left), ("right", description.right)):
                if reach is not None:
                    distance(name, reach)
    elif isinstance(description, KeyLengths):
        match(LENGTHS, {"lengths": description.lengths}, B=batch)
    elif isinstance(description, KeyPadding):
        match(PADDING, {"keep": description.keep}, advice=NOT_ADDITIVE, B=batch, K=key_length)
    elif isinstance(description, Segments):
        ids = {"query_ids": description.query_ids, "key_ids": description.key_ids}
        match(SEGMENTS, ids, B=batch, Q=query_length, K=key_length)
        dtypes = dtype_name(description.query_ids), dtype_name(description.key_ids)
        if dtypes[0] != dtypes[1]:  # some pairs have no common integer
            refuse("query_ids and key_ids", "share one dtype", " and ".join(dtypes), TypeError)
    elif isinstance(description, Dense):
        array = {"mask": description.array}
        match(DENSE, array, advice=NOT_ADDITIVE, B=batch, H=heads, Q=query_length, K=key_length)
    else:
        refuse("mask", "be a description or a boolean array", type(description).__name__, TypeError)


def check_offset(description: Causal | SlidingWindow, query_length: int, key_length: int, batch: int | None) -> None:
    """Check an offset: an integer, or one for each batch element, or None beside as many queries as keys (MASK-3)."""
    offset, name = description.offset, type(description).__name__
    if getattr(offset, "shape", ()) != ():
        match(OFFSETS, {"offset": offset}, B=batch)
    elif offset is not None:
        position("offset", offset)
    elif query_length != key_length:
        aligned = f"offset=0 aligns the first query and key, offset={key_length - query_length} the last ones"
        refuse(name, f"have an offset with {query_length} queries and {key_length} keys", f"None; {aligned}")


def mask_values(description: Mask | None, key_length: int, readable: Callable[[Any], np.ndarray | None]) -> None:
    """Check the values inside a description, where they can be read: lengths within K, offsets within 2**30.

    `mask` has checked the description. `readable` gives an array as NumPy's, or None where it cannot be read.
    """
    if isinstance(description, And | Or):
        mask_values(description.left, key_length, readable)
        mask_values(description.right, key_length, readable)
    elif isinstance(description, KeyLengths) and (lengths := readable(description.lengths)) is not None:
        if lengths.size and (lengths.min() < 0 or lengths.max() > key_length):
            refuse("lengths", f"lie between 0 and {key_length} keys", lengths.tolist())
    elif isinstance(description, Causal | SlidingWindow) and hasattr(description.offset, "shape"):
        offsets = readable(description.offset)
        if offsets is not None and offsets.size:
            position("offset", int(offsets.min()))
            position("offset", int(offsets.max()))
