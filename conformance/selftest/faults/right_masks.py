"""Right meanings of mask descriptions, in steps that can be replaced, for an attention that takes them as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_numpy
from conformance.selftest.faults.right_numpy import Function
from specification.masks import And, Causal, KeyLengths, KeyPadding, Or, Segments, SlidingWindow

# --- the steps: every one gives a boolean array that broadcasts to [B, H, Q, K] ---------------------------------------


def per_batch(numbers: Any) -> Any:
    """A number or one for each batch element, [B or 1, 1, 1, 1]; None is 0."""
    return np.asarray(0 if numbers is None else numbers).reshape(-1, 1, 1, 1)


def causal(mask: Causal, queries: Any, keys: Any) -> Any:
    """j <= i + offset."""
    return keys <= queries + per_batch(mask.offset)


def window(mask: SlidingWindow, queries: Any, keys: Any) -> Any:
    """-left <= j - (i + offset) <= right."""
    distance = keys - (queries + per_batch(mask.offset))
    after = True if mask.left is None else distance >= -mask.left
    before = True if mask.right is None else distance <= mask.right
    return np.ones_like(distance, bool) & after & before


def lengths(mask: KeyLengths, queries: Any, keys: Any) -> Any:
    """j < lengths[b]."""
    return keys < per_batch(mask.lengths)


def padding(mask: KeyPadding, queries: Any, keys: Any) -> Any:
    """keep[b, j]."""
    return mask.keep[:, None, None, :]


def segments(mask: Segments, queries: Any, keys: Any) -> Any:
    """query_ids[b, i] = key_ids[b, j]."""
    return mask.query_ids[:, None, :, None] == mask.key_ids[:, None, None, :]


def dense(array: Any) -> Any:
    return array if array.ndim == 4 else array[None, None]


def both(left: Any, right: Any) -> Any:
    return left & right


def either(left: Any, right: Any) -> Any:
    return left | right


class Meanings(NamedTuple):
    """Every step under the name by which a fault replaces it."""

    causal: Function = causal
    window: Function = window
    lengths: Function = lengths
    padding: Function = padding
    segments: Function = segments
    dense: Function = dense
    both: Function = both
    either: Function = either


# --- the operation ----------------------------------------------------------------------------------------------------


def meaning(m: Meanings, mask: Any, queries: Any, keys: Any) -> Any:
    """queries is [Q, 1], keys is [K]."""
    if isinstance(mask, And | Or):
        combine = m.both if isinstance(mask, And) else m.either
        return combine(meaning(m, mask.left, queries, keys), meaning(m, mask.right, queries, keys))
    if isinstance(mask, Causal):
        return m.causal(mask, queries, keys)
    if isinstance(mask, SlidingWindow):
        return m.window(mask, queries, keys)
    if isinstance(mask, KeyLengths):
        return m.lengths(mask, queries, keys)
    if isinstance(mask, KeyPadding):
        return m.padding(mask, queries, keys)
    if isinstance(mask, Segments):
        return m.segments(mask, queries, keys)
    return m.dense(mask.array)


def described_by(m: Meanings) -> Function:
    """`attention` that gives descriptions these meanings."""

    @declare(["structured", "no-gradients"])
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None
    ) -> Any:
        if mask is not None:
            mask = meaning(m, mask, np.arange(query.shape[2])[:, None], np.arange(key.shape[2]))
        return right_numpy.attention(query, key, value, mask=mask, bias=bias, scale=scale)

    return attention


RIGHT = Meanings()
attention = described_by(RIGHT)
