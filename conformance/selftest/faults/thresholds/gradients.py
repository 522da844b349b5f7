"""Gradients of attention that are wrong past a size only, beside a right output (ATT-12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Before,
    Call,
    Condition,
    Tensor,
    altered,
    before,
    each,
    more,
    partly,
    zeroed,
)

Change = Callable[[Call, Tensor], Tensor]
"""(call, gradient) -> the wrong one."""


def of_query(change: Change) -> Before:
    return lambda c: replace(c, query=altered(c.query, lambda bar: change(c, bar)))


def of_key(change: Change) -> Before:
    return lambda c: replace(c, key=altered(c.key, lambda bar: change(c, bar)))


def of_value(change: Change) -> Before:
    return lambda c: replace(c, value=altered(c.values, lambda bar: change(c, bar)))


def of_sinks(change: Change) -> Before:
    return lambda c: replace(c, sinks=None if c.sinks is None else altered(c.sinks, lambda bar: change(c, bar)))


def of_bias(change: Change) -> Before:
    """Of the bias of every batch element and head, before it is summed over those that share it."""

    def changed(c: Call) -> Call:
        if c.bias is None:
            return c
        bias = c.bias.expand(c.B, c.H, c.Q, c.K)
        return replace(c, bias=altered(bias, lambda bar: change(c, bar)))

    return changed


def of_one_query_head(name: str) -> Before:
    """A shared head of keys or values hears of the first query head that reads it."""

    def change(c: Call) -> Call:
        array = c.key if name == "key" else c.values
        others = torch.arange(c.H) % c.ratio != 0
        several = altered(array.repeat_interleave(c.ratio, 1), lambda bar: zeroed(bar, (slice(None), others)))
        return replace(c, key=several) if name == "key" else replace(c, value=several)

    # The other of the two still has G heads, so it is repeated too.
    def both(c: Call) -> Call:
        found = change(c)
        if name == "key":
            return replace(found, value=c.values.repeat_interleave(c.ratio, 1))
        return replace(found, key=c.key.repeat_interleave(c.ratio, 1))

    return both


def lost_from(axis: int, first: Callable[[Call], int]) -> Change:
    """0 from there on."""
    return lambda c, bar: zeroed(bar, (*[slice(None)] * axis, slice(first(c), None)))


def at(n: int) -> Callable[[Call], int]:
    return lambda c: n


def tile_of_keys(n: int) -> Callable[[Call], int]:
    return lambda c: c.K // n * n


def tile_of_queries(n: int) -> Callable[[Call], int]:
    return lambda c: c.Q // n * n


def first_batch(c: Call, bar: Tensor) -> Tensor:
    return zeroed(bar, slice(1, None))


def nothing(c: Call, bar: Tensor) -> Tensor:
    return torch.zeros_like(bar)


def gradient(name: str, when: Condition, change: Before) -> Fault:
    return before("ATT-12", name, when, change)


def lost(
    name: str, axis: str, place: int, argument: Callable[[Change], Before], sizes: Sequence[int]
) -> tuple[Fault, ...]:
    """The gradient past each size is lost. name: what comes before "n lost". place: of the axis in the argument."""
    return each(sizes, lambda n: gradient(f"{name} {n} lost", more(axis, n), argument(lost_from(place, at(n)))))


def last_block_of_heads(n: int) -> Change:
    """Blocks of n heads write their sums to one place, where the last stays."""
    return lambda c, bar: zeroed(bar, (slice(None), slice(0, (c.H - 1) // n * n)))


def shared_by_heads(n: int) -> Condition:
    """Whether more than n heads have one bias."""
    return lambda c: c.bias is not None and c.bias.shape[-3:-2] in ((), (1,)) and n < c.H


def query_is_constant(c: Call) -> bool:
    return torch.is_grad_enabled() and c.key.requires_grad and not c.query.requires_grad


FAULTS: tuple[Fault, ...] = (
    *each(
        (8, 16, 32),
        lambda n: gradient(
            f"bias's gradient from the last {n} of the heads that share it",
            shared_by_heads(n),
            of_bias(last_block_of_heads(n)),
        ),
    ),
    gradient("keys' gradient lost where the query is constant", query_is_constant, of_key(nothing)),
    *each(
        (32, 64, 128),
        lambda n: gradient(
            f"keys' gradient without the last tile of {n}", partly("K", n), of_key(lost_from(2, tile_of_keys(n)))
        ),
    ),
    *each(
        (32, 64, 128),
        lambda n: gradient(
            f"query's gradient without the last tile of {n}", partly("Q", n), of_query(lost_from(2, tile_of_queries(n)))
        ),
    ),
    *lost("values' gradient past key", "K", 2, of_value, (128, 1024, 8192, 32768)),
    *lost("keys' gradient past key", "K", 2, of_key, (256, 4096, 65535)),
    *lost("query's gradient past query", "Q", 2, of_query, (128, 1024, 16384)),
    *lost("keys' gradient past column", "D", 3, of_key, (64, 128, 256)),
    *lost("values' gradient past column", "V", 3, of_value, (64, 128, 256)),
    *lost("query's gradient past head", "H", 1, of_query, (16, 32, 64)),
    *lost("keys' gradient past batch element", "B", 0, of_key, (64, 1024, 65535)),
    *lost("bias's gradient past key", "K", 3, of_bias, (64, 1024, 8192)),
    *lost("gradient of sinks past head", "H", 0, of_sinks, (16, 64)),
    *each(
        (64, 512, 4096),
        lambda n: gradient(f"query's gradient halved past {n} keys", more("K", n), of_query(lambda c, bar: bar / 2)),
    ),
    *each(
        (3, 5, 8),
        lambda n: gradient(
            f"keys' gradient of one head of groups of {n}", lambda c: c.ratio == n, of_one_query_head("key")
        ),
    ),
    *each(
        (4, 7),
        lambda n: gradient(
            f"values' gradient of one head of groups past {n}", more("ratio", n), of_one_query_head("value")
        ),
    ),
    *each(
        (32, 256, 2048),
        lambda n: gradient(
            f"bias's gradient of batch element 0 past {n} keys",
            lambda c: c.B > 1 and more("K", n)(c),
            of_bias(first_batch),
        ),
    ),
    *each(
        (64, 1024, 16384), lambda n: gradient(f"no gradient of sinks past {n} keys", more("K", n), of_sinks(nothing))
    ),
)
