"""Masks that are read wrongly from the second tile on (MASK-1 to MASK-4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Before,
    Call,
    Tensor,
    before,
    dense,
    each,
    more,
)
from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Or, Segments, SlidingWindow
from torch_impl.masks import allowed_pairs, per_batch

# --- dense masks ------------------------------------------------------------------------------------------------------


def masked(change: Callable[[Tensor], Tensor]) -> Before:
    """change: booleans [B or 1, H or 1, Q, K] to the wrong ones."""
    return lambda c: replace(c, mask=change(dense(c)))


def of_first_row(n: int) -> Before:
    return masked(lambda mask: mask[..., torch.arange(mask.shape[-2]) // n * n, :])


def of_first_key(n: int) -> Before:
    """Keys past n take what the mask says of those before."""
    return masked(lambda mask: mask[..., torch.arange(mask.shape[-1]) % n])


def ignored_past(n: int) -> Before:
    return masked(lambda mask: mask | (torch.arange(mask.shape[-1]) >= n))


def wrapped(mask: Tensor) -> Tensor:
    """A row's place, row * K, has 16 bits."""
    Q, K = mask.shape[-2:]
    places = (torch.arange(Q) * K % 2**16)[:, None] + torch.arange(K)
    return mask.reshape(*mask.shape[:-2], Q * K)[..., places.clamp(max=Q * K - 1)]


def along(axis: int, n: int) -> Before:
    """Past n, the mask of the first batch element or head."""

    def change(mask: Tensor) -> Tensor:
        places = torch.arange(mask.shape[axis])
        return mask.index_select(axis, torch.where(places < n, places, 0))

    return masked(change)


def mask_axis(c: Call, axis: int) -> int:
    return dense(c).shape[axis]


DENSE = (
    *each(
        (32, 64, 128, 512, 4096),
        lambda n: before("MASK-1", f"mask of the first of {n} queries for all", more("Q", n, "mask"), of_first_row(n)),
    ),
    *each(
        (64, 256, 1024, 8192, 65535),
        lambda n: before("MASK-1", f"mask ignored past key {n}", more("K", n, "mask"), ignored_past(n)),
    ),
    *each(
        (128, 2048, 32768),
        lambda n: before("MASK-1", f"mask of the first {n} keys again", more("K", n, "mask"), of_first_key(n)),
    ),
    before(
        "MASK-1", "place in the mask in 16 bits", lambda c: c.mask is not None and c.Q * c.K > 2**16, masked(wrapped)
    ),
    *each(
        (16, 128, 4096),
        lambda n: before(
            "MASK-1",
            f"mask of batch element 0 past {n}",
            lambda c: c.mask is not None and mask_axis(c, 0) > n,
            along(0, n),
        ),
    ),
    *each(
        (16, 32, 64),
        lambda n: before(
            "MASK-1", f"mask of head 0 past {n}", lambda c: c.mask is not None and mask_axis(c, 1) > n, along(1, n)
        ),
    ),
)

# --- descriptions -----------------------------------------------------------------------------------------------------

Meaning = Callable[[Any, Tensor, Tensor], Tensor]
"""(description, queries [Q, 1], keys [K]) -> booleans."""

STRUCTURED = {"supports": ("structured",)}


def described(kind: type, meaning: Meaning) -> Before:
    """Descriptions of this kind get that meaning, inside combinations too."""

    def change(c: Call) -> Call:
        queries, keys = torch.arange(c.Q)[:, None], torch.arange(c.K)

        def changed(mask: Any) -> Any:
            if isinstance(mask, And | Or):
                return type(mask)(changed(mask.left), changed(mask.right))
            if not isinstance(mask, kind):
                return mask
            found = meaning(mask, queries, keys)
            return Dense(found.expand(*found.shape[:2], c.Q, c.K))

        return replace(c, mask=changed(c.mask))

    return change


def holds(mask: Any, kind: type) -> bool:
    """Whether a mask is of this kind, or combines one that is."""
    return holds(mask.left, kind) or holds(mask.right, kind) if isinstance(mask, And | Or) else isinstance(mask, kind)


def described_fault(rule: str, name: str, axis: str, n: int, kind: type, meaning: Meaning) -> Fault:
    """Shows for more than n queries or keys. axis: "Q" or "K"."""
    return before(
        rule,
        name,
        lambda c: holds(c.mask, kind) and getattr(c, axis) > n,
        described(kind, meaning),
        given=STRUCTURED,
    )


def right_meaning(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
    return allowed_pairs(mask, len(queries), len(keys), "cpu")


def causal_from_the_tile(n: int) -> Meaning:
    """A query's place is counted from the beginning of its tile."""
    return lambda mask, queries, keys: keys <= queries % n + per_batch(mask.offset)


def causal_by_tiles(n: int) -> Meaning:
    """Past the first, tiles of n keys on the diagonal are allowed as a whole."""

    def meaning(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
        last = queries + per_batch(mask.offset)
        return (keys <= last) | ((keys >= n) & (keys // n <= torch.div(last, n, rounding_mode="floor")))

    return meaning


def causal_without_last(n: int) -> Meaning:
    """Past the first, the tile of n keys that the diagonal ends in is skipped."""

    def meaning(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
        last = queries + per_batch(mask.offset)
        return (keys <= last) & ((keys < n) | (keys // n < torch.div(last, n, rounding_mode="floor")))

    return meaning


def causal_up_to(n: int) -> Meaning:
    """Keys past n are not masked."""
    return lambda mask, queries, keys: (keys <= queries + per_batch(mask.offset)) | (keys >= n)


def window_of(mask: SlidingWindow, queries: Tensor, keys: Tensor, left: Any = True, right: Any = True) -> Tensor:
    """left, right: booleans, where each bound holds."""
    distance = keys - (queries + per_batch(mask.offset))
    inside = torch.ones_like(distance, dtype=torch.bool)
    if mask.left is not None:
        inside = inside & ((distance >= -mask.left) | ~torch.as_tensor(left))
    return inside if mask.right is None else inside & ((distance <= mask.right) | ~torch.as_tensor(right))


def bounds_up_to(n: int) -> Meaning:
    """Queries past n have no bounds."""
    return lambda mask, queries, keys: window_of(mask, queries, keys, queries < n, queries < n)


def bounds_before(n: int) -> Meaning:
    """Keys past n are inside every window."""
    return lambda mask, queries, keys: window_of(mask, queries, keys) | (keys >= n)


def window_of_first(n: int) -> Meaning:
    """Every tile of n queries has the window of its first."""
    return lambda mask, queries, keys: window_of(mask, queries // n * n, keys)


def window_by_tiles(n: int) -> Meaning:
    """Past the first, a tile of n keys in which the window begins or ends is inside as a whole."""

    def meaning(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
        place = queries + per_batch(mask.offset)
        inside = window_of(mask, queries, keys)
        begins = torch.zeros_like(inside) if mask.left is None else same_tile(place - mask.left, keys, n)
        ends = torch.zeros_like(inside) if mask.right is None else same_tile(place + mask.right, keys, n)
        return inside | ((keys >= n) & (begins | ends))

    return meaning


def same_tile(place: Tensor, keys: Tensor, n: int) -> Tensor:
    return keys // n == torch.div(place, n, rounding_mode="floor")


def lengths_by_tiles(n: int) -> Meaning:
    """A length past n is rounded up to whole tiles."""

    def meaning(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
        lengths = per_batch(mask.lengths)
        return keys < torch.where(lengths > n, -torch.div(-lengths, n, rounding_mode="floor") * n, lengths)

    return meaning


def lengths_up_to(n: int) -> Meaning:
    """A length past n is n."""
    return lambda mask, queries, keys: keys < per_batch(mask.lengths).clamp(max=n)


def lengths_in_16_bits(mask: Any, queries: Tensor, keys: Tensor) -> Tensor:
    return keys < per_batch(mask.lengths.to(torch.int16))


def padding_up_to(n: int) -> Meaning:
    """Past key n all tokens are real."""
    return lambda mask, queries, keys: right_meaning(mask, queries, keys) | (keys >= n)


def segments_by_tiles(n: int) -> Meaning:
    """Every tile of n keys has the segment of its first."""

    def meaning(mask: Segments, queries: Tensor, keys: Tensor) -> Tensor:
        first = mask.key_ids[:, keys // n * n]
        return mask.query_ids[:, None, :, None] == first[:, None, None, :]

    return meaning


def segments_in_bits(bits: int) -> Meaning:
    """Ids that differ by a multiple of 2^bits are taken for one."""

    def meaning(mask: Segments, queries: Tensor, keys: Tensor) -> Tensor:
        return (mask.query_ids % 2**bits)[:, None, :, None] == (mask.key_ids % 2**bits)[:, None, None, :]

    return meaning


def segments_as(dtype: torch.dtype) -> Meaning:
    """Ids that are one number in a narrow format are taken for one."""

    def meaning(mask: Segments, queries: Tensor, keys: Tensor) -> Tensor:
        return mask.query_ids.to(dtype)[:, None, :, None] == mask.key_ids.to(dtype)[:, None, None, :]

    return meaning


def window_without_last_tile(n: int) -> Meaning:
    """The last tile of n keys, counted from a tile of n queries, is skipped where the window has one key of it."""

    def meaning(mask: SlidingWindow, queries: Tensor, keys: Tensor) -> Tensor:
        inside = window_of(mask, queries, keys)
        if mask.right is None:
            return inside
        end = queries // n * n + n - 1 + per_batch(mask.offset) + mask.right
        return inside & (keys < -torch.div(-end, n, rounding_mode="floor") * n)

    return meaning


DESCRIBED = (
    *(
        described_fault(
            "MASK-2", f"ids of segments in {str(d).removeprefix('torch.')}", "K", 0, Segments, segments_as(d)
        )
        for d in (torch.bfloat16, torch.float16, torch.float32)
    ),
    *each(
        (32, 64, 128),
        lambda n: described_fault(
            "MASK-4",
            f"last tile of {n} keys skipped where the window has one key of it",
            "K",
            n,
            SlidingWindow,
            window_without_last_tile(n),
        ),
    ),
    *each(
        (32, 64, 128, 1024),
        lambda n: described_fault(
            "MASK-3",
            f"causal counted from the beginning of each tile of {n} queries",
            "Q",
            n,
            Causal,
            causal_from_the_tile(n),
        ),
    ),
    *each(
        (64, 128, 1024),
        lambda n: described_fault(
            "MASK-3", f"whole tiles of {n} keys on the diagonal", "K", n, Causal, causal_by_tiles(n)
        ),
    ),
    *each(
        (64, 128),
        lambda n: described_fault(
            "MASK-3", f"last tile of {n} keys before the diagonal skipped", "K", n, Causal, causal_without_last(n)
        ),
    ),
    *each(
        (256, 4096, 32768),
        lambda n: described_fault("MASK-3", f"causal up to key {n} only", "K", n, Causal, causal_up_to(n)),
    ),
    *each(
        (64, 512, 8192),
        lambda n: described_fault("MASK-4", f"no window past query {n}", "Q", n, SlidingWindow, bounds_up_to(n)),
    ),
    *each(
        (128, 1024, 32768),
        lambda n: described_fault(
            "MASK-4", f"keys past {n} inside every window", "K", n, SlidingWindow, bounds_before(n)
        ),
    ),
    *each(
        (32, 128),
        lambda n: described_fault(
            "MASK-4", f"window of the first of {n} queries for all", "Q", n, SlidingWindow, window_of_first(n)
        ),
    ),
    *each(
        (64, 128),
        lambda n: described_fault(
            "MASK-4", f"whole tiles of {n} keys at the window's ends", "K", n, SlidingWindow, window_by_tiles(n)
        ),
    ),
    *each(
        (64, 128, 1024),
        lambda n: described_fault(
            "MASK-2", f"lengths past {n} rounded up to whole tiles", "K", n, KeyLengths, lengths_by_tiles(n)
        ),
    ),
    *each(
        (256, 4096),
        lambda n: described_fault("MASK-2", f"lengths of {n} at most", "K", n, KeyLengths, lengths_up_to(n)),
    ),
    described_fault("MASK-2", "lengths in 16 bits", "K", 32767, KeyLengths, lengths_in_16_bits),
    *each(
        (64, 512, 8192, 32768),
        lambda n: described_fault("MASK-2", f"no padding past key {n}", "K", n, KeyPadding, padding_up_to(n)),
    ),
    *each(
        (64, 256, 2048),
        lambda n: described_fault(
            "MASK-2", f"segment of the first of {n} keys for all", "K", n, Segments, segments_by_tiles(n)
        ),
    ),
    *each(
        (8, 16),
        lambda bits: described_fault(
            "MASK-2", f"ids of segments in {bits} bits", "K", 0, Segments, segments_in_bits(bits)
        ),
    ),
)


def nothing_in_first_tile(n: int) -> Before:
    """NaN in rows of which the bias forbids the first tile of n keys, as its maximum of -inf gives it."""

    def change(c: Call) -> Call:
        if c.bias is None:
            return c
        forbidden = c.bias == -torch.inf
        spoiled = forbidden[..., :n].all(-1, keepdim=True) & ~forbidden.all(-1, keepdim=True)
        return replace(c, bias=torch.where(spoiled, torch.nan, c.bias))

    return change


FORBIDDEN = each(
    (16, 64, 128, 256),
    lambda n: before(
        "ATT-3", f"NaN where the bias forbids the first {n} keys", more("K", n, "bias"), nothing_in_first_tile(n)
    ),
)

FAULTS: tuple[Fault, ...] = (*DENSE, *DESCRIBED, *FORBIDDEN)
