"""Widths, heads, groups and batches past a size (ATT-1, ATT-7, ATT-8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import starmap

import torch

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    After,
    Before,
    Call,
    Tensor,
    after,
    before,
    each,
    more,
    partly,
    zeroed,
)

# --- widths -----------------------------------------------------------------------------------------------------------


def whole(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def power_of_2(width: int) -> int:
    return 1 << (width - 1).bit_length()


def default_of(width: Callable[[int], int]) -> Before:
    """The default scale is that of another width."""
    return lambda c: replace(c, scale=width(c.D) ** -0.5)


def without_columns(first: Callable[[int], int]) -> Before:
    """Columns of the query from this one on are not in the product."""
    return lambda c: replace(c, scale=c.number, query=zeroed(c.query, (..., slice(first(c.D), None))))


def columns_twice(n: int) -> Before:
    """The last tile of n columns begins earlier, so that it is whole, and some columns count twice."""

    def change(c: Call) -> Call:
        factor = torch.ones(c.D, dtype=c.query.dtype)
        factor[c.D - n : c.D // n * n] = 2
        return replace(c, scale=c.number, query=c.query * factor)

    return change


def values_of_zero(first: Callable[[Call], int]) -> After:
    return lambda c, output: zeroed(output, (..., slice(first(c), None)))


def values_again(n: int) -> After:
    """Columns past n are those before once more."""
    return lambda c, output: output[..., torch.arange(c.V) % n]


def multiple_of(n: int) -> Callable[[int], int]:
    return lambda width: width // n * n


WIDTHS = (
    *each(
        (64, 128, 256),
        lambda n: before(
            "ATT-1",
            f"default scale of a width padded to {n} past {n}",
            lambda c: c.scale is None and partly("D", n)(c),
            default_of(lambda w: whole(w, n)),
        ),
    ),
    *each(
        (64, 128, 256),
        lambda n: before(
            "ATT-1",
            f"default scale of a power of two past width {n}",
            lambda c: c.scale is None and more("D", n)(c) and power_of_2(c.D) != c.D,
            default_of(power_of_2),
        ),
    ),
    *each(
        (64, 128, 256),
        lambda n: before(
            "ATT-1",
            f"default scale of {n} past width {n}",
            lambda c: c.scale is None and more("D", n)(c),
            default_of(lambda w: n),
        ),
    ),
    *each(
        (64, 1024, 16384),
        lambda n: before(
            "ATT-1", f"scale left out past {n} keys", more("K", n, "scale"), lambda c: replace(c, scale=None)
        ),
    ),
    *each(
        (64, 96, 128, 192, 256, 320, 512),
        lambda n: before("ATT-1", f"columns past {n} not in the product", more("D", n), without_columns(lambda w: n)),
    ),
    *each(
        (8, 16, 32, 64),
        lambda n: before(
            "ATT-1", f"last columns of no whole {n} not in the product", partly("D", n), without_columns(multiple_of(n))
        ),
    ),
    *each(
        (16, 64),
        lambda n: before("ATT-1", f"last columns of no whole {n} counted twice", partly("D", n), columns_twice(n)),
    ),
    *each(
        (64, 96, 128, 256, 512),
        lambda n: after("ATT-8", f"columns of values past {n} get 0", more("V", n), values_of_zero(lambda c: n)),
    ),
    *each(
        (128, 320),
        lambda n: after("ATT-8", f"columns of values past {n} are the first again", more("V", n), values_again(n)),
    ),
    *each(
        (8, 32),
        lambda n: after(
            "ATT-8",
            f"last columns of values of no whole {n} get 0",
            partly("V", n),
            values_of_zero(lambda c: c.V // n * n),
        ),
    ),
    *each(
        (64, 128),
        lambda n: after(
            "ATT-8",
            f"values as wide as keys past width {n}",
            lambda c: max(n, c.D) < c.V,
            values_of_zero(lambda c: c.D),
        ),
    ),
)

# --- heads and batches ------------------------------------------------------------------------------------------------


def key_heads(place: Callable[[Call, Tensor], Tensor]) -> Before:
    """place: from the query heads to the key heads that they read."""

    def change(c: Call) -> Call:
        heads = place(c, torch.arange(c.H)).clamp(max=c.G - 1)
        return replace(c, key=c.key[:, heads], value=c.values[:, heads])

    return change


def last_answer(axis: int, n: int) -> After:
    """Past n the answer before."""
    return lambda c, output: output.index_select(axis, torch.arange(output.shape[axis]).clamp(max=n - 1))


def first_answers(axis: int, n: int) -> After:
    return lambda c, output: output.index_select(axis, torch.arange(output.shape[axis]) % n)


def flattened(change: Callable[[Tensor], Tensor]) -> After:
    """Of batch elements and heads as one axis."""
    return lambda c, output: change(output.flatten(0, 1)).reshape(output.shape)


HEADS = (
    before(
        "ATT-7",
        "groups counted in powers of two",
        lambda c: c.ratio != power_of_2(max(c.ratio, 1)),
        key_heads(lambda c, heads: heads // (power_of_2(c.ratio) // 2)),
    ),
    *starmap(
        lambda n, m: before(
            "ATT-7",
            f"groups of {n} counted as {m}",
            lambda c: c.ratio == n and c.G > 1,
            key_heads(lambda c, heads: heads // m),
        ),
        ((3, 4), (5, 4), (6, 4), (7, 8), (8, 4), (12, 8)),
    ),
    *each(
        (3, 5, 7, 12),
        lambda n: before(
            "ATT-7",
            f"heads of groups of {n} interleaved",
            lambda c: c.ratio == n and c.G > 1,
            key_heads(lambda c, heads: heads % c.G),
        ),
    ),
    before(
        "ATT-7",
        "groups of 8 at most",
        lambda c: c.ratio > 8 and c.G > 1,
        key_heads(lambda c, heads: heads // c.ratio * (heads % c.ratio < 8)),
    ),
    *each(
        (8, 32),
        lambda n: before(
            "ATT-7",
            f"key head 0 past query head {n}",
            lambda c: c.ratio > 1 and more("H", n)(c),
            key_heads(lambda c, heads: torch.where(heads < n, heads // c.ratio, 0)),
        ),
    ),
    *each(
        (16, 32, 64, 100),
        lambda n: after("ATT-8", f"heads past {n} get the last answer", more("H", n), last_answer(1, n)),
    ),
    *each(
        (32, 64), lambda n: after("ATT-8", f"heads past {n} get the first answers", more("H", n), first_answers(1, n))
    ),
    *each(
        (16, 128, 1024, 32767),
        lambda n: after("ATT-8", f"batch elements past {n} get the last answer", more("B", n), last_answer(0, n)),
    ),
    *each(
        (64, 512, 4096, 65535),
        lambda n: after(
            "ATT-8", f"batch elements past {n} get 0", more("B", n), lambda c, output: zeroed(output, slice(n, None))
        ),
    ),
    *each(
        (64, 1024, 65535),
        lambda n: after(
            "ATT-8",
            f"batches times heads past {n} get 0",
            lambda c: n < c.B * c.H,
            flattened(lambda output: zeroed(output, slice(n, None))),
        ),
    ),
)

FAULTS: tuple[Fault, ...] = (*WIDTHS, *HEADS)
