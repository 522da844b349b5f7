"""Which keys a block of queries can see: what an engine needs of a mask to skip work (MASK-3 to MASK-6).

For every batch element and every block of consecutive queries there are two ranges of keys. Outside [first, stop) no
query of the block may attend to any key, so nothing there has to be computed; inside [full_first, full_stop) every
query of it may attend to every key, so nothing there has to be masked. Both are safe and not always sharp: what they
leave open is settled by the mask itself.

`xp` is the array module: NumPy, or one with its names (`jax.numpy`), and what a description holds may then be traced.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Mask, Or, Segments, SlidingWindow

FAR = 2**30
"""No offset, distance or key lies farther (MASK-3)."""


class KeyRanges(NamedTuple):
    """Integer arrays [B or 1, blocks], all within [0, K]; a range whose stop is not past its first is empty."""

    first: Any
    stop: Any
    full_first: Any
    full_stop: Any


def key_ranges(
    mask: Mask | None, query_length: int, key_length: int, block: int, xp: ModuleType, begin: np.ndarray | None = None
) -> KeyRanges:
    """The ranges of each block of `block` queries, for a mask that was checked and at least as many queries, and a key.

    Every block is whole: where the last one would be shorter, it reaches back. begin: where the blocks begin, each of
    which then ends where the next one begins; known, and not traced.
    """
    if begin is None:
        begin = xp.minimum(xp.arange(0, query_length, block), query_length - block)
        queries = begin[:, None] + xp.arange(block)
    else:
        last = np.append(begin[1:], query_length) - 1
        # A shorter block has its last query again.
        queries = np.minimum(begin[:, None] + np.arange(block), last[:, None])
    ranges = described(mask, queries, key_length, xp)
    return KeyRanges(*xp.broadcast_arrays(*ranges, queries[None, :, 0])[:4])


def starts(mask: Mask | None, query_length: int, block: int) -> np.ndarray:
    """Where blocks of at most `block` queries begin: anew at every segment, so that a block has queries of one alone.

    A segment of any batch element counts for all. With more segments than blocks, as if there were none. The mask holds
    NumPy arrays.
    """
    edges = [0, *changes(mask), query_length]
    if len(edges) > query_length // block + 2:
        edges = [0, query_length]
    return np.concatenate([np.arange(*edge, block) for edge in pairwise(edges)])


def changes(mask: Mask | None) -> list[int]:
    """The queries with which a segment begins, in any batch element; the first query is not among them."""
    if isinstance(mask, And | Or):
        return sorted({*changes(mask.left), *changes(mask.right)})
    if isinstance(mask, Segments):
        return (np.flatnonzero((mask.query_ids[:, 1:] != mask.query_ids[:, :-1]).any(axis=0)) + 1).tolist()
    return []


def described(mask: Mask | None, queries: np.ndarray, key_length: int, xp: ModuleType) -> KeyRanges:
    """The ranges of the blocks [blocks, block] of queries."""
    low, high = queries[None, :, 0], queries[None, :, -1]
    if isinstance(mask, And | Or):
        left, right = (described(side, queries, key_length, xp) for side in (mask.left, mask.right))
        return (intersection if isinstance(mask, And) else union)(left, right, xp)
    if mask is None:
        ranges = KeyRanges(0, key_length, 0, key_length)
    elif isinstance(mask, Causal):
        offset = per_batch(mask.offset, xp)
        ranges = KeyRanges(0, high + offset + 1, 0, low + offset + 1)
    elif isinstance(mask, SlidingWindow):
        ranges = window(mask, low, high, key_length, xp)
    elif isinstance(mask, KeyLengths):
        lengths = per_batch(mask.lengths, xp)
        ranges = KeyRanges(0, lengths, 0, lengths)
    elif isinstance(mask, KeyPadding):
        ranges = KeyRanges(*span(mask.keep[:, None], xp), *run(mask.keep[:, None], xp))
    elif isinstance(mask, Segments):
        ranges = segments(mask, queries, xp)
    else:
        assert isinstance(mask, Dense)
        ranges = dense(mask.array if mask.array.ndim == 4 else mask.array[None, None], queries, xp)
    return KeyRanges(*(xp.clip(edge, 0, key_length) for edge in ranges))


def window(mask: SlidingWindow, low: np.ndarray, high: np.ndarray, key_length: int, xp: ModuleType) -> KeyRanges:
    """Query i stands at p = i + offset and sees the keys from p - left to p + right."""
    offset = per_batch(mask.offset, xp)
    first, full_first, stop, full_stop = 0, 0, key_length, key_length
    if mask.left is not None:
        left = whole(mask.left, xp)
        first, full_first = low + offset - left, high + offset - left
    if mask.right is not None:
        # Two numbers of up to 2**30 do not fit in 32 bits together; a position out there is past every key anyway.
        right = whole(mask.right, xp)
        stop = xp.minimum(high + offset, FAR - 2) + right + 1
        full_stop = xp.minimum(low + offset, FAR - 2) + right + 1
    return KeyRanges(first, stop, full_first, full_stop)


def segments(mask: Segments, queries: np.ndarray, xp: ModuleType) -> KeyRanges:
    """The keys with ids from the least to the largest of the block's queries, which are full if those are one id."""
    ids, keys = mask.query_ids[:, queries], mask.key_ids[:, None]
    least, largest = xp.min(ids, axis=2)[..., None], xp.max(ids, axis=2)[..., None]
    return KeyRanges(*span((keys >= least) & (keys <= largest), xp), *run((keys == least) & (keys == largest), xp))


def dense(array: np.ndarray, queries: np.ndarray, xp: ModuleType) -> KeyRanges:
    """The keys that any query of the block sees in any head, and those that every one sees in every head."""
    any_head, every_head = xp.any(array, axis=1), xp.all(array, axis=1)
    return KeyRanges(*span(xp.any(any_head[:, queries], axis=2), xp), *run(xp.all(every_head[:, queries], axis=2), xp))


def per_batch(numbers: int | np.ndarray | None, xp: ModuleType) -> Any:
    """A number, or one number per batch element, as [B or 1, 1]; None is 0."""
    return xp.reshape(whole(0 if numbers is None else numbers, xp), (-1, 1))


def whole(numbers: int | np.ndarray | None, xp: ModuleType) -> Any:
    """As signed integers of the usual width: sums of narrow ones would leave their range, of uint64 be no integers."""
    return xp.asarray(numbers).astype(int)


def span(flags: np.ndarray, xp: ModuleType) -> tuple[Any, Any]:
    """From the first key [..., K] that is flagged to past the last one; (0, 0) where none is."""
    length = flags.shape[-1]
    some = xp.any(flags, axis=-1)
    first, last = xp.argmax(flags, axis=-1), length - xp.argmax(flags[..., ::-1], axis=-1)
    return xp.where(some, first, 0), xp.where(some, last, 0)


def run(flags: np.ndarray, xp: ModuleType) -> tuple[Any, Any]:
    """The span of the flagged keys where every key in it is flagged; (0, 0) elsewhere."""
    first, stop = span(flags, xp)
    unbroken = xp.sum(flags, axis=-1) == stop - first
    return xp.where(unbroken, first, 0), xp.where(unbroken, stop, 0)


def intersection(left: KeyRanges, right: KeyRanges, xp: ModuleType) -> KeyRanges:
    return KeyRanges(*(
        (xp.minimum if "stop" in name else xp.maximum)(getattr(left, name), getattr(right, name))
        for name in KeyRanges._fields
    ))  # fmt: skip


def union(left: KeyRanges, right: KeyRanges, xp: ModuleType) -> KeyRanges:
    """The range that spans both, and the longer of the full ones."""
    left_empty, right_empty = left.stop <= left.first, right.stop <= right.first
    first = xp.minimum(xp.where(left_empty, right.first, left.first), xp.where(right_empty, left.first, right.first))
    stop = xp.maximum(xp.where(left_empty, 0, left.stop), xp.where(right_empty, 0, right.stop))
    longer = left.full_stop - left.full_first >= right.full_stop - right.full_first
    return KeyRanges(
        first,
        stop,
        xp.where(longer, left.full_first, right.full_first),
        xp.where(longer, left.full_stop, right.full_stop),
    )
