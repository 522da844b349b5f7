"""Masks read wrongly (MASK-1 to MASK-6): boolean arrays first, then descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults import right_masks
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_masks import described_by, per_batch
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    allowed_pairs,
    attention,
    attention_by,
    exponentials,
)

# --- boolean arrays ---------------------------------------------------------------------------------------------------


def misread(rule: str, name: str, reading: Function) -> Fault:
    """`reading(mask, shape)` is taken for the mask [Q, K] or [B or 1, H or 1, Q, K]."""

    def allowed(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
        return allowed_pairs(None if mask is None else reading(mask, shape), bias, shape)

    return Fault(rule, name, "attention", attention_by(RIGHT._replace(allowed=allowed)), attention)


def first_head(mask: Any, shape: tuple[int, ...]) -> Any:
    return mask[:, :1] if mask.ndim == 4 else mask


def first_batch_element(mask: Any, shape: tuple[int, ...]) -> Any:
    return mask[:1] if mask.ndim == 4 else mask


def heads_where_they_fit(mask: Any, shape: tuple[int, ...]) -> Any:
    """An axis as long as there are heads is taken for the heads, also when it is the batch."""
    return mask.swapaxes(0, 1) if mask.ndim == 4 and mask.shape[:2] == (shape[1], 1) else mask


def padding_where_it_fits(mask: Any, shape: tuple[int, ...]) -> Any:
    """A matrix with as many rows as there are batch elements is taken for padding."""
    return mask[:, None, None, :] if mask.shape == (shape[0], shape[3]) else mask


def repeated_over_flat_heads(mask: Any, shape: tuple[int, ...]) -> Any:
    """[B, Q, K] is repeated H times one after the other, and cut as [B, H, Q, K]."""
    flat = mask.ndim == 4 and mask.shape[1] == 1 and mask.shape[0] == shape[0]
    return np.tile(mask[:, 0], (shape[1], 1, 1)).reshape(shape) if flat else mask


def key_heads(mask: Any, shape: tuple[int, ...]) -> Any:
    """Two neighbouring query heads get the mask of the first, as if it were one for each key head."""
    pairs = mask.ndim == 4 and mask.shape[1] > 1 and mask.shape[1] % 2 == 0
    return mask[:, np.arange(mask.shape[1]) // 2 * 2] if pairs else mask


def one_run(mask: Any, shape: tuple[int, ...]) -> Any:
    """From the first allowed key of a row to the last one."""
    return np.logical_or.accumulate(mask, -1) & np.logical_or.accumulate(mask[..., ::-1], -1)[..., ::-1]


def as_many_from_the_left(mask: Any, shape: tuple[int, ...]) -> Any:
    return np.arange(shape[-1]) < mask.sum(-1, keepdims=True)


def causal_if_the_first_row_is(mask: Any, shape: tuple[int, ...]) -> Any:
    looks_causal = not mask[..., :1, 1:].any()
    return np.tri(*shape[2:], dtype=bool) if looks_causal else mask


def first_query(mask: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(mask[..., :1, :], mask.shape)


def last_key_always(mask: Any, shape: tuple[int, ...]) -> Any:
    return mask | (np.arange(shape[-1]) == shape[-1] - 1)


def two_at_least(mask: Any, shape: tuple[int, ...]) -> Any:
    """A row with a single allowed key is taken for an empty one."""
    return mask & (mask.sum(-1, keepdims=True) > 1)


def added(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """True is added to the scores as 1."""
    if mask is not None:
        bias = np.float32(mask) + (0 if bias is None else bias)
    return attention(query, key, value, bias=bias, scale=scale)


def mask_or_bias(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    """What the bias does not forbid is allowed, whatever the mask says."""
    return allowed_pairs(mask if bias is None else None, bias, shape)


def either_allows(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if bias is None or mask is None or not np.isinf(bias).any():
        return allowed_pairs(mask, bias, shape)
    return allowed_pairs(mask, None, shape) | allowed_pairs(None, bias, shape)


ARRAYS = (
    misread("MASK-1", "True taken for forbidden", lambda mask, shape: ~mask),
    Fault("MASK-1", "mask added to the scores", "attention", added, attention),
    misread("MASK-1", "mask of head 0 for every head", first_head),
    misread("MASK-1", "mask of batch element 0 for all", first_batch_element),
    misread("MASK-1", "batch taken for heads where they are equal", heads_where_they_fit),
    misread("MASK-1", "batch mask repeated over flattened heads", repeated_over_flat_heads),
    misread("MASK-1", "mask of every other head for grouped heads", key_heads),
    misread("MASK-1", "every row taken for one run of keys", one_run),
    misread("MASK-1", "last key always allowed", last_key_always),
    misread("MASK-1", "a single allowed key taken for none", two_at_least),
    misread("MASK-2", "every row taken for a length", as_many_from_the_left),
    misread("MASK-3", "taken for causal by its first row", causal_if_the_first_row_is),
    misread("MASK-3", "mask of the first query for all", first_query),
    misread("MASK-5", "[Q, K] taken for [B, K] where Q = B", padding_where_it_fits),
    Fault("MASK-6", "mask ignored beside a bias", "attention", attention_by(RIGHT._replace(allowed=mask_or_bias)),
          attention),
    Fault("MASK-6", "mask or -inf in the bias", "attention", attention_by(RIGHT._replace(allowed=either_allows)),
          attention),
    Fault("MASK-6", "-inf in the bias forbids nothing that the mask allows", "attention",
          attention_by(RIGHT._replace(
              allowed=lambda mask, bias, shape: allowed_pairs(mask, bias if mask is None else None, shape),
              exponentials=lambda shifted, allowed: exponentials(np.nan_to_num(shifted, neginf=0), allowed))),
          attention),
)  # fmt: skip

# --- descriptions -----------------------------------------------------------------------------------------------------


def described(rule: str, name: str, **meanings: Function) -> Fault:
    function = described_by(right_masks.RIGHT._replace(**meanings))
    return Fault(rule, name, "attention", function, right_masks.attention)


def window_between(left: Any, right: Any, offset: Any, queries: Any, keys: Any) -> Any:
    """left <= j - (i + offset) <= right, None for no bound."""
    distance = keys - (queries + per_batch(offset))
    bounded = np.ones_like(distance, bool)
    bounded = bounded if left is None else bounded & (distance >= left)
    return bounded if right is None else bounded & (distance <= right)


def counted(mask: Any, queries: Any, keys: Any) -> Any:
    """`left` taken for the number of keys."""
    left = None if mask.left is None else 1 - mask.left
    return window_between(left, mask.right, mask.offset, queries, keys)


def never_ahead(mask: Any, queries: Any, keys: Any) -> Any:
    """No right bound taken for 0."""
    left = None if mask.left is None else -mask.left
    return window_between(left, mask.right or 0, mask.offset, queries, keys)


def zero_taken_for_none(mask: Any, queries: Any, keys: Any) -> Any:
    return window_between(-mask.left if mask.left else None, mask.right or None, mask.offset, queries, keys)


def symmetric(mask: Any, queries: Any, keys: Any) -> Any:
    """The left distance on both sides."""
    left = mask.right if mask.left is None else mask.left
    return window_between(None if left is None else -left, left, mask.offset, queries, keys)


def first_offset(mask: Any, queries: Any, keys: Any) -> Any:
    return keys <= queries + per_batch(mask.offset)[:1]


def nothing_taken_for_everything(mask: Any, queries: Any, keys: Any) -> Any:
    """A length of 0 taken for none given."""
    return (keys < per_batch(mask.lengths)) | (per_batch(mask.lengths) == 0)


def padding_zero(mask: Any, queries: Any, keys: Any) -> Any:
    """Segment 0 taken for padding."""
    same = right_masks.segments(mask, queries, keys)
    return same & (mask.query_ids != 0)[:, None, :, None]


DESCRIPTIONS = (
    described("MASK-2", "lengths that include their end", lengths=lambda m, i, j: j <= per_batch(m.lengths)),
    described("MASK-2", "a length of 0 taken for no length", lengths=nothing_taken_for_everything),
    described("MASK-2", "lengths of batch element 0 for all", lengths=lambda m, i, j: j < per_batch(m.lengths)[:1]),
    described("MASK-2", "padding of batch element 0 for all", padding=lambda m, i, j: m.keep[:1, None, None, :]),
    described("MASK-2", "segment 0 taken for padding", segments=padding_zero),
    described("MASK-2", "segments that are causal too",
              segments=lambda m, i, j: right_masks.segments(m, i, j) & (j <= i)),
    described("MASK-3", "aligned at the last key",
              causal=lambda m, i, j: j <= i + per_batch(m.offset) + len(j) - len(i)),
    described("MASK-3", "offset of the other sign", causal=lambda m, i, j: j <= i - per_batch(m.offset)),
    described("MASK-3", "offset of batch element 0 for all", causal=first_offset),
    described("MASK-4", "left bound taken for the number of keys", window=counted),
    described("MASK-4", "no right bound taken for 0", window=never_ahead),
    described("MASK-4", "bounds of 0 taken for none", window=zero_taken_for_none),
    described("MASK-4", "left bound on both sides", window=symmetric),
    described("MASK-6", "or taken for either but not both", either=lambda left, right: left ^ right),
    described("MASK-6", "or of two masks taken for the second", either=lambda left, right: right),
)  # fmt: skip

FAULTS = (*ARRAYS, *DESCRIPTIONS)
