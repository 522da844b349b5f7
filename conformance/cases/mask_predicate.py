"""Which query may attend to which key, asked one pair at a time (MASK-1 to MASK-6)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from conformance.cases.case import Case
from specification.masks import (
    And,
    Causal,
    Dense,
    KeyLengths,
    KeyPadding,
    Or,
    Segments,
    SlidingWindow,
    as_mask,
    map_arrays,
)


def is_allowed(mask: Any, b: int, h: int, i: int, j: int) -> bool:
    """Whether query i of batch element b and head h may attend to key j. The mask's arrays are nested lists."""
    match mask:
        case None:
            return True
        case Causal(offset):
            return j <= i + batch_offset(offset, b)
        case SlidingWindow(left, right, offset):
            distance = j - (i + batch_offset(offset, b))
            return (left is None or -left <= distance) and (right is None or distance <= right)
        case KeyLengths(lengths):
            return j < lengths[b]
        case KeyPadding(keep):
            return keep[b][j]
        case Segments(query_ids, key_ids):
            return broadcast_entry(query_ids, b)[i] == broadcast_entry(key_ids, b)[j]
        case Dense(array) if isinstance(array[0][0], list):
            return broadcast_entry(broadcast_entry(array, b), h)[i][j]
        case Dense(array):
            return array[i][j]
        case And(left, right):
            return is_allowed(left, b, h, i, j) and is_allowed(right, b, h, i, j)
        case Or(left, right):
            return is_allowed(left, b, h, i, j) or is_allowed(right, b, h, i, j)
    raise TypeError(f"no mask description: {mask!r}")


def batch_offset(offset: Any, b: int) -> int:
    """An offset that is left out is 0; one for each batch element is a list."""
    if offset is None:
        return 0
    return offset[b] if isinstance(offset, list) else offset


def broadcast_entry(rows: list, index: int) -> Any:
    """rows[index], where a single row stands for all of them."""
    return rows[0] if len(rows) == 1 else rows[index]


def visible_pairs(mask: Any, bias: np.ndarray | None, shape: tuple[int, int, int, int]) -> Any:
    """The predicate's value for every (b, h, i, j) in [B, H, Q, K]; -inf in the bias forbids a pair too (ATT-3)."""
    plain = map_arrays(as_mask(mask), lambda array: np.asarray(array).tolist())
    pairs = [bool(is_allowed(plain, *index)) for index in product(*map(range, shape))]
    visible = np.array(pairs, dtype=bool).reshape(shape)
    return visible if bias is None else visible & ~np.isneginf(np.asarray(bias).astype(np.float64))


def visible_bias_entries(visible: Any, shape: tuple[int, ...]) -> Any:
    """The entries of a bias [Q, K] or [B or 1, H or 1, Q, K] that are added to the score of some visible pair."""
    padded = (1,) * (4 - len(shape)) + tuple(shape)
    repeated = tuple(axis for axis in (0, 1) if padded[axis] == 1)
    return visible.any(axis=repeated, keepdims=True).reshape(shape)


def any_in_group(seen: Any, groups: int) -> Any:
    """[B, H, K] to [B, G, K]: whether one of the query heads that read a key/value head sees the key."""
    batch, heads, keys = seen.shape
    return seen.reshape(batch, groups, heads // max(groups, 1), keys).any(axis=2)


def dense_meaning(case: Case) -> np.ndarray:
    """What the mask of a call of attention allows, [B, H, Q, K], whatever its bias."""
    (B, H, Q, _), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
    return visible_pairs(case.options.get("mask"), None, (B, H, Q, K))
