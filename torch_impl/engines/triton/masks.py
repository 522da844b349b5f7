"""What the Triton kernels are told of a mask: which tiles they visit, which of those need it, and what settles a pair.

A tile is a block of queries by a block of keys. Conjunctions of `Causal`, `SlidingWindow`, `KeyLengths`, `KeyPadding`
and one `Segments` are settled in the kernels from a few numbers for each batch element, query or key. What else a
description holds is handed over as a boolean array.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from specification.key_ranges import FAR, key_ranges, run, span
from specification.masks import And, Causal, KeyLengths, KeyPadding, Mask, Segments, SlidingWindow, map_arrays
from torch_impl.masks import allowed_pairs, per_batch, signed


class Tiles(NamedTuple):
    """How many queries and keys a kernel takes at once: powers of two, and at least 16 on a GPU.

    warps: that share the work of a program. stages: how many tiles are under way from memory at once.
    """

    queries: int
    keys: int
    warps: int = 4
    stages: int = 1

    @property
    def launch(self) -> dict[str, int]:
        """What a kernel is launched with."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages}


class Tilings(NamedTuple):
    """The tiles of each kernel: forward, gradient of the queries, gradients of keys and values."""

    forward: Tiles
    query: Tiles
    key: Tiles


class Marks(NamedTuple):
    """What settles a pair; None for what the mask has not.

    reach: [B, 3], the least and the largest j - i that is allowed, and the number of keys. keep: [B, K]. query_ids,
    key_ids: [B, Q], [B, K]. array: [B, H, Q, K]; axes that it shares have stride 0.
    """

    reach: torch.Tensor
    keep: torch.Tensor | None
    query_ids: torch.Tensor | None
    key_ids: torch.Tensor | None
    array: torch.Tensor | None

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the array; zeros without an array."""
        return (0, 0, 0, 0) if self.array is None else self.array.stride()


# --- which tiles ------------------------------------------------------------------------------------------------------


def tile_ranges(mask: Mask | None, query_shape: torch.Size, key_length: int, tiles: Tiles) -> np.ndarray:
    """First, stop, and first and stop of the tiles without a mask, in blocks of keys: [B or 1, blocks of queries, 4].

    All four lie in this order: first <= full first <= full stop <= stop.
    """
    Q, K = query_shape[2], key_length
    mask = map_arrays(mask, lambda array: array.detach().cpu().numpy())
    keys = key_ranges(mask, Q, K, min(tiles.queries, Q), np)
    first, stop = keys.first // tiles.keys, -(-keys.stop // tiles.keys)
    stop = np.where(keys.first < keys.stop, stop, first)
    return ordered(first, stop, -(-keys.full_first // tiles.keys), keys.full_stop // tiles.keys)


def turned(ranges: np.ndarray, blocks: int) -> np.ndarray:
    """The same seen from the keys: ranges of blocks of queries for each of so many blocks of keys."""
    key_blocks = np.arange(blocks)[:, None]
    first, stop, full_first, full_stop = np.moveaxis(ranges[:, None], -1, 0)
    visible = (first <= key_blocks) & (key_blocks < stop)
    full = (full_first <= key_blocks) & (key_blocks < full_stop)
    return ordered(*span(visible, np), *run(full, np))


def ordered(first: np.ndarray, stop: np.ndarray, full_first: np.ndarray, full_stop: np.ndarray) -> np.ndarray:
    full_first = np.clip(full_first, first, stop)
    return np.stack([first, stop, full_first, np.clip(full_stop, full_first, stop)], axis=-1)


def ranges_of_queries(
    mask: Mask | None, query: torch.Tensor, key_length: int, tiles: Tiles
) -> tuple[torch.Tensor, bool]:
    """For every block of queries the blocks of keys to visit; and whether one of them may hold a forbidden pair."""
    ranges = tile_ranges(mask, query.shape, key_length, tiles)
    first, stop, full_first, full_stop = np.moveaxis(ranges, -1, 0)
    masked = mask is not None and bool(np.any((first < full_first) | (full_stop < stop)))
    return placed(ranges, query), masked


def ranges_of_keys(mask: Mask | None, query: torch.Tensor, key_length: int, tiles: Tiles) -> torch.Tensor:
    """For every block of keys the blocks of queries to visit."""
    ranges = tile_ranges(mask, query.shape, key_length, tiles)
    return placed(turned(ranges, -(-key_length // tiles.keys)), query)


def placed(ranges: np.ndarray, query: torch.Tensor) -> torch.Tensor:
    """Ranges on the device of the query, [B, blocks, 4]: as in `tile_ranges`, for every batch element."""
    on_device = torch.as_tensor(np.ascontiguousarray(ranges, np.int32), device=query.device)
    return on_device.expand(query.shape[0], -1, -1)


# --- which pairs ------------------------------------------------------------------------------------------------------


def marks_of(mask: Mask | None, query: torch.Tensor, key_length: int) -> Marks:
    """What settles every pair of a mask that was checked, on the device of the query."""
    (B, H, Q, _), K, device = query.shape, key_length, query.device
    sides = [*conjuncts(mask)]
    keeps = [side.keep for side in sides if isinstance(side, KeyPadding)]
    segments = next((side for side in sides if isinstance(side, Segments)), None)
    others = [side for side in sides if not isinstance(side, (*REACHING, KeyPadding)) and side is not segments]
    array = None
    if others:
        array = allowed_pairs(reduce(And, others), Q, K, device).to(torch.uint8).expand(B, H, Q, K)
    return Marks(
        reach=reach(sides, B, K, device),
        keep=reduce(torch.logical_and, keeps).to(torch.uint8).contiguous() if keeps else None,
        query_ids=None if segments is None else identities(segments.query_ids, B),
        key_ids=None if segments is None else identities(segments.key_ids, B),
        array=array,
    )


REACHING = (Causal, SlidingWindow, KeyLengths)


def conjuncts(mask: Mask | None) -> Iterator[Any]:
    if isinstance(mask, And):
        yield from conjuncts(mask.left)
        yield from conjuncts(mask.right)
    elif mask is not None:
        yield mask


def reach(sides: list[Any], batch: int, key_length: int, device: torch.device) -> torch.Tensor:
    """The least and the largest j - i, and the number of keys, that all sides allow: [B, 3]."""
    least, largest, keys = (torch.full((batch,), number, device=device) for number in (-FAR, FAR, key_length))
    for side in sides:
        if isinstance(side, KeyLengths):
            keys = torch.minimum(keys, signed(side.lengths))
        elif isinstance(side, Causal | SlidingWindow):
            offset = per_batch(side.offset)
            offset = offset.flatten() if isinstance(offset, torch.Tensor) else offset
            left, right = (None, 0) if isinstance(side, Causal) else (signed(side.left), signed(side.right))
            least = least if left is None else torch.maximum(least, torch.zeros_like(least) + offset - left)
            largest = largest if right is None else torch.minimum(largest, torch.zeros_like(largest) + offset + right)
    return torch.stack([least, largest, keys], dim=-1).clamp(-FAR, FAR).to(torch.int32)


def identities(ids: torch.Tensor, batch: int) -> torch.Tensor:
    return signed(ids).expand(batch, -1).contiguous()
