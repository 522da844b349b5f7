"""Mask descriptions: plain data that says which query may attend to which key (rules MASK-1 to MASK-6).

A description answers, for one batch element, head, query and key, whether attending is allowed; it holds the numbers
needed for the answer and computes nothing. What it means is settled by each implementation's `materialize`, which gives
the answers as a boolean array. `a & b` allows what both allow, `a | b` what either does.

Numbers may be plain ones; arrays may be lists, NumPy's, or a framework's, also while it traces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, overload

from specification.arrays import Array

__all__ = ["And", "Causal", "Dense", "KeyLengths", "KeyPadding", "Mask", "Or", "Segments", "SlidingWindow"]

AnyArray = TypeVar("AnyArray", bound=Array)


class Mask:
    """Base of every description, so that `&` and `|` work between any two."""

    def __and__(self, other: Mask | Array | None) -> And:
        return And(self, as_mask(other))

    def __rand__(self, other: Mask | Array | None) -> And:
        return And(as_mask(other), self)

    def __or__(self, other: Mask | Array | None) -> Or:
        return Or(self, as_mask(other))

    def __ror__(self, other: Mask | Array | None) -> Or:
        return Or(as_mask(other), self)

    # Without this, `array & mask` would be NumPy's elementwise "and", applied to the description as an object.
    __array_ufunc__ = None


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Key j is allowed iff j <= i + offset, where query i stands at absolute position i + offset (MASK-3).

    `offset` is an int or one int per batch element, [B]. None means 0, and is an error unless Q = K.
    """

    offset: Any = None


@dataclass(frozen=True, eq=False)
class SlidingWindow(Mask):
    """Key j is allowed iff -left <= j - (i + offset) <= right (MASK-4).

    `left` and `right` are inclusive distances, None for unbounded; `offset` is as in `Causal`.
    """

    left: Any
    right: Any
    offset: Any = None


@dataclass(frozen=True, eq=False)
class KeyLengths(Mask):
    """Key j of batch element b is allowed iff j < lengths[b]; `lengths` is an integer array [B]."""

    lengths: Any


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """Key j of batch element b is allowed iff keep[b, j]; `keep` is a boolean array [B, K], True for a real token."""

    keep: Any


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """Query i may attend to key j iff their ids are equal; integer arrays [B or 1, Q] and [B or 1, K].

    This is how several sequences share one row ("packing").
    """

    query_ids: Any
    key_ids: Any


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """The boolean array itself: [Q, K] or [B or 1, H or 1, Q, K], True = this query may attend to this key."""

    array: Any


@dataclass(frozen=True, eq=False)
class And(Mask):
    """Allowed iff both sides allow. Written `left & right`."""

    left: Mask | None
    right: Mask | None


@dataclass(frozen=True, eq=False)
class Or(Mask):
    """Allowed iff either side allows. Written `left | right`."""

    left: Mask | None
    right: Mask | None


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """Wrap an array as `Dense` (MASK-2); a description or None is returned as it is."""
    return mask if mask is None or isinstance(mask, Mask) else Dense(mask)


@overload
def map_arrays(mask: Mask | None, convert: Callable[[Any], Any]) -> Mask | None: ...


@overload
def map_arrays(mask: object, convert: Callable[[Any], Any]) -> Any: ...


def map_arrays(mask: object, convert: Callable[[Any], Any]) -> Any:
    """Apply a function to every list and array inside a description, or to an array; numbers and None stay."""
    if isinstance(mask, Mask):
        parts: Any = mask
        return type(parts)(*(map_arrays(getattr(parts, field.name), convert) for field in fields(parts)))
    return convert(mask) if isinstance(mask, list | tuple) or hasattr(mask, "shape") else mask


def part(mask: Mask | None, query_start: Any, key_start: Any, cut: Callable[[Any, tuple[str, ...]], Any]) -> Any:
    """Describe some of the queries and keys, counted anew, for a description that was checked, or None.

    cut: a function (array, axes) that gives the piece of an array whose axes are so named, of "batch", "heads",
    "queries" and "keys". An axis of batch or heads may have size 1 for all. Offsets and lengths are asked for with the
    one axis "batch". They must come as signed integers: the differences taken here may be negative.
    """
    if isinstance(mask, And | Or):
        return type(mask)(*(part(side, query_start, key_start, cut) for side in (mask.left, mask.right)))
    if isinstance(mask, Causal | SlidingWindow):
        offset = 0 if mask.offset is None else mask.offset
        offset = (cut(offset, ("batch",)) if hasattr(offset, "shape") else offset) + (query_start - key_start)
        return Causal(offset) if isinstance(mask, Causal) else SlidingWindow(mask.left, mask.right, offset)
    if isinstance(mask, KeyLengths):
        return KeyLengths(cut(mask.lengths, ("batch",)) - key_start)
    if isinstance(mask, KeyPadding):
        return KeyPadding(cut(mask.keep, ("batch", "keys")))
    if isinstance(mask, Segments):
        return Segments(cut(mask.query_ids, ("batch", "queries")), cut(mask.key_ids, ("batch", "keys")))
    if isinstance(mask, Dense):
        array = mask.array if mask.array.ndim == 4 else mask.array[None, None]
        return Dense(cut(array, ("batch", "heads", "queries", "keys")))
    return mask


def both(mask: Mask | AnyArray | None, other: Mask | AnyArray | None) -> Mask | AnyArray | None:
    """Combine two masks, descriptions, boolean arrays or None, which allows everything, into what both allow."""
    if mask is None or other is None:
        return other if mask is None else mask
    return And(as_mask(mask), as_mask(other))
