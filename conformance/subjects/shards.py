"""Which part of a call of attention each of several ranks has, and the whole of all parts (DIST-1 to DIST-3).

A rank has a part of the sequence, or of the heads. With a part of the sequence it has its queries, keys and values. Of
masks, biases and dropout it has the rows of its own queries, with a column for each of all keys. With a part of the
heads it has whole sequences of some key heads, and of the query heads that read them. What has no such axis is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np

from conformance.cases.declaration import Declaration
from conformance.subjects.wrong_answers import DtypeOrShape, RanksDiffer, WrongAnswer
from specification.distributed import shard_positions
from specification.masks import Mask, part

SHARDS = ("sequence", "zigzag", "heads")
"""What ranks have a part of; "zigzag" is the sequence in that layout."""
KEYS = ("key", "value")
PAIRS = ("mask", "bias", "dropout_keep")
"""Arrays [queries, keys], or with axes of batch and heads before them."""

Place = tuple[int, np.ndarray]
"""An axis, and the indices along it that a rank has."""


def layout_of(shard: str) -> str:
    """The layout of positions on the ranks."""
    return "zigzag" if shard == "zigzag" else "contiguous"


def declare_ranks(declaration: Declaration, shard: str, ranks: int) -> Declaration:
    """What is declared of a function on ranks, where nothing else is said.

    Parts of the sequence are merged by their log-sum-exps, as in a ring (DIST-1). Parts of the heads are equal, of two
    key heads or more: where a rank has one, it could not tell whether a bias of one head is shared. Parts of the
    sequence are equal where they are arguments of `jax.shard_map`.
    """
    declaration = replace(declaration, strides=False, ranks=ranks, shard=shard)
    if shard == "heads":
        return replace(declaration, head_multiple=lcm(declaration.head_multiple, 2 * ranks))
    merged = {"saved": "logsumexp", "merging": "logsumexp", **declaration.conventions}
    length = lcm(declaration.length_multiple, ranks if declaration.compiled else 1)
    return replace(declaration, conventions=merged, length_multiple=length)


@dataclass(frozen=True)
class Shards:
    """How the arrays of one call are spread.

    H, G, Q, K: of the whole. axes: of the length and of the heads in query, key, value and output.
    """

    shard: str
    ranks: int
    H: int
    G: int
    Q: int
    K: int
    axes: tuple[int, int] = (2, 1)
    tiled: bool = False  # query head h reads key head h % G, not h // (H / G)

    @classmethod
    def read_call(cls, shard: str, ranks: int, named: Mapping[str, Any], layout: str, tiled: bool) -> Shards:
        axes = (2, 1) if layout == "BHTD" else (1, 2)
        query, key = named["query"].shape, named["key"].shape
        return cls(shard, ranks, query[axes[1]], key[axes[1]], query[axes[0]], key[axes[0]], axes, tiled)

    def place(self, name: str, shape: Sequence[int], rank: int) -> Place | None:
        """Where a rank's part of an argument or result lies; None where it has the whole."""
        if self.shard != "heads":
            length, axis = (self.K if name in KEYS else self.Q), self.axes[0]
            if name not in ("query", *KEYS, "output", "logsumexp", *PAIRS):
                return None
            axis = -2 if name in PAIRS else 2 if name == "logsumexp" else axis
            whole = shape[axis] != length  # one row for all queries
            return None if whole else (axis, shard_positions(length, self.ranks, rank, layout_of(self.shard)))
        own = shard_positions(self.G, self.ranks, rank)
        if name in KEYS:
            return self.axes[1], own
        read = np.arange(self.H)
        read = read % max(self.G, 1) if self.tiled else read // max(self.H // max(self.G, 1), 1)
        heads = np.flatnonzero(np.isin(read, own))
        if name in ("query", "output"):
            return self.axes[1], heads
        if name in ("sinks", "alibi_slopes"):
            return len(shape) - 1, heads
        paired = name in PAIRS and len(shape) == 4 and shape[1] > 1
        return (1, heads) if paired or name == "logsumexp" else None

    def cut(self, name: str, value: Any, rank: int) -> Any:
        """A rank's part of an argument: an array of NumPy, a description of masks, or a plain value."""
        if isinstance(value, Mask):
            if self.shard != "heads":
                return value  # a description is of the whole, on every rank

            def cut_heads(array: Any, axes: tuple[str, ...]) -> Any:
                return self.cut("mask", array, rank) if "heads" in axes else array

            return part(value, 0, 0, cut_heads)
        place = self.place(name, value.shape, rank) if isinstance(value, np.ndarray) else None
        return value if place is None else np.take(value, place[1], place[0])

    def join(self, name: str, parts: Sequence[np.ndarray], shape: Sequence[int], dtype: Any, result: str) -> np.ndarray:
        """The whole of all ranks' parts. What each has whole must be the same on each, to the last bit.

        Args:
            name: of the argument or result that is spread like this one.
            parts: by rank.
            shape, dtype: of the whole. None as a dtype: that of the first part.
            result: what the report calls it.

        Raises:
            WrongAnswer: a part has another shape or dtype, or parts differ that must not.
        """
        whole = np.zeros(shape, parts[0].dtype if dtype is None else dtype)
        for rank, array in enumerate(parts):
            place, due = self.place(name, shape, rank), list(shape)
            if place is not None:
                due[place[0]] = len(place[1])
            if array.shape != tuple(due) or array.dtype != whole.dtype:
                detail = DtypeOrShape(str(array.dtype), array.shape, (str(whole.dtype),), tuple(due), rank=rank)
                raise WrongAnswer(detail, result)
            if place is not None:
                index: list[Any] = [slice(None)] * len(shape)
                index[place[0]] = place[1]
                whole[tuple(index)] = array
            elif array.tobytes() != parts[0].tobytes():
                raise WrongAnswer(RanksDiffer(rank), result)
            else:
                whole = array
        return whole
