"""Mask descriptions made into boolean arrays (MASK-1 to MASK-6). True = this query may attend to this key."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from specification import checks
from specification.masks import (
    And,
    Causal,
    Dense,
    KeyLengths,
    KeyPadding,
    Mask,
    Or,
    Segments,
    SlidingWindow,
    as_mask,
    map_arrays,
)

__all__ = ["materialize"]


def materialize(
    mask: Mask | Bool[np.ndarray, "..."] | None,
    query_length: int,
    key_length: int,
    *,
    batch: int | None = None,
    heads: int | None = None,
) -> Bool[np.ndarray, "#B #H #Q #K"]:
    """Make the boolean array that a mask description means (MASK-2).

    Args:
        mask: A description, a boolean array (the same as `Dense` of it), or None for "every query sees every key".
        query_length: Q.
        key_length: K.
        batch, heads: When given, the arrays inside the description must fit them.

    Returns:
        A new boolean array of rank 4 that broadcasts to [batch, heads, query_length, key_length].

    Raises:
        TypeError: A mask that is not boolean.
        ValueError: Sizes or values that do not fit.
    """
    mask = checked_mask(mask, query_length, key_length, batch, heads)
    allowed = allowed_pairs(mask, query_length, key_length)
    return np.array(np.broadcast_to(allowed, (*allowed.shape[:2], query_length, key_length)))


def checked_mask(
    mask: Mask | Bool[np.ndarray, "..."] | None,
    query_length: int,
    key_length: int,
    batch: int | None,
    heads: int | None,
) -> Mask | None:
    """The description with NumPy arrays inside, once all that it holds is known to fit."""
    mask = map_arrays(as_mask(mask), np.asarray)
    checks.mask(mask, query_length, key_length, batch, heads)
    checks.mask_values(mask, key_length, np.asarray)
    return mask


def allowed_pairs(
    mask: Mask | None, query_length: int, key_length: int, rows: slice = slice(None)
) -> Bool[np.ndarray, "#B #H #q #K"]:
    """The description's meaning for the queries in `rows` only, so that long sequences can be taken in blocks."""
    queries = np.arange(query_length)[rows, None]
    keys = np.arange(key_length)
    if mask is None:
        return np.ones((1, 1, 1, 1), bool)
    if isinstance(mask, And | Or):
        left, right = (allowed_pairs(side, query_length, key_length, rows) for side in (mask.left, mask.right))
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Causal):
        return keys <= queries + per_batch(mask.offset)
    if isinstance(mask, SlidingWindow):
        distance = keys - (queries + per_batch(mask.offset))
        inside = np.ones_like(distance, dtype=bool)
        if mask.left is not None:
            inside &= distance >= -per_batch(mask.left)
        if mask.right is not None:
            inside &= distance <= per_batch(mask.right)
        return inside
    if isinstance(mask, KeyLengths):
        return keys < per_batch(mask.lengths)
    if isinstance(mask, KeyPadding):
        return mask.keep[:, None, None, :]
    if isinstance(mask, Segments):
        return mask.query_ids[:, None, rows, None] == mask.key_ids[:, None, None, :]
    assert isinstance(mask, Dense)
    dense = mask.array if mask.array.ndim == 4 else mask.array[None, None]
    return dense[:, :, rows, :]


def per_batch(numbers: int | np.ndarray | None) -> np.ndarray:
    """A number, or one number per batch element, shaped [B or 1, 1, 1, 1]; None is 0."""
    return np.asarray(0 if numbers is None else numbers, np.int64).reshape(-1, 1, 1, 1)
