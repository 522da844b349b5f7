"""Rows of the plan for attention, its companions and multi-head attention."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import SIMPLEST_FIRST, Declaration, Sizes, adapt_sizes
from conformance.sampling.draws import Rows
from conformance.sampling.plan.covering import (
    BATCHES,
    KEY_HEADS,
    LENGTHS,
    RATIOS,
    WIDTHS,
    Fits,
    LevelRow,
    Levels,
    Row,
    choose_sizes,
    classes,
    covering,
    more_rows,
)


class Budget(NamedTuple):
    """What one case may have at most: multiplications, pairs of a query and a key, numbers in its arrays.

    A row for the largest size of a dimension may have more.
    """

    multiplications: int
    pairs: int
    numbers: int

    def affords(self, row: Row) -> bool:
        """Whether a case of these sizes is within the budget."""
        heads = row["batch"] * row["key_heads"]
        queries, keys = heads * row["group_ratio"] * row["queries"], heads * row["keys"]
        pairs, widths = queries * row["keys"], row["key_width"] + row["value_width"]
        return (
            pairs * widths <= self.multiplications and pairs <= self.pairs and (queries + keys) * widths <= self.numbers
        )


WHOLE, LESS = Budget(2**21, 2**17, 2**19), Budget(2**20, 2**16, 2**18)
"""Of the plan "everything", and of the others: of these there are many, so they get less."""
MOST = Budget(2**23 + 2**18, 2**18, 2**23 + 2**18)
"""What no case exceeds, whatever the subject takes: 65,537 keys and values of width 64 with one query."""
LARGE = Budget(2**25, 2**20 + 2**17, 2**21 + 2**18)
"""For pairs of ranges that do not meet within the budget of their plan: 1,025 queries and keys, or 257 and 4,097."""
LARGEST = Budget(2**29, 2**22 + 2**19, 2**23 + 2**18)
"""The same at the thorough effort: 1,025 queries and 4,097 keys. A case takes some seconds."""
SPARE = Budget(2**24, 2**19 + 2**16, 2**20 + 2**17)
"""Within which a large case has sizes past the smallest of their ranges, so that most take a tenth of a second."""

SINGLE = {
    "batch": (2, 3),
    "key_heads": (1, 2),
    "group_ratio": (1, 2, 3),
    "queries": (1, 2, 5),
    "keys": (3, 7, 12),
    "key_width": (1, 3, 5, 8),
    "value_width": (1, 2, 5),
}
"""The tiny sizes of dimensions that a plan does not vary."""

VALUES = {
    "batch": BATCHES,
    "key_heads": KEY_HEADS,
    "group_ratio": RATIOS,
    "queries": (1, 2, *LENGTHS),
    "keys": LENGTHS,
    "key_width": WIDTHS,
    "value_width": WIDTHS,
}
TYPICAL = {
    "batch": (2, 33, 300, 65537),
    "key_heads": (1, 3, 40),
    "group_ratio": (1, 2, 3, 5, 12),
    "queries": (1, 5, 40, 129, 1025, 65537),
    "keys": (7, 40, 129, 513, 2049, 65537),
    "key_width": (5, 40, 80, 160, 320),
    "value_width": (2, 24, 72, 192, 257),
}
"""For frameworks that compile for every shape: one size of each range, and no power of two."""

LENGTH_RANGES = (16, 64, 256, 1024, 4096)
ONE = (1,)
"""The end of a range of its own: for one query, as in decoding, kernels go another way."""
RANGES = {
    "everything": {
        "batch": (5, 300),
        "key_heads": (1, 8),
        "group_ratio": (1, 2, 4),
        "queries": ONE + LENGTH_RANGES,
        "keys": LENGTH_RANGES,
        "key_width": (16, 64, 128, 256),
        "value_width": (16, 64, 128, 256),
    },
    "lengths": {"batch": (2,), "key_heads": (2,), "queries": (*ONE, 16, 128, 1024), "keys": LENGTH_RANGES},
    "widths": {"queries": (*ONE, 16), "keys": (16, 128), "key_width": (16, 64, 128, 256), "value_width": (16, 128)},
    "heads": {"batch": (3, 64), "key_heads": (1, 8), "group_ratio": RATIOS[:-1], "keys": (16, 128)},
    "features": {
        "queries": (*ONE, 16),
        "keys": (16, 64, 256, 1024),
        "key_width": (16, 128),
        "key_heads": (2,),
        "group_ratio": (1, 2),
    },
    "merges": {"batch": (5, 300), "key_heads": (8, 32), "queries": (16, 128, 1024), "value_width": (16, 64, 128, 256)},
}
"""Plans by name: the dimensions that each varies, with the ends of the ranges whose pairs must meet."""


def levels_of(plan: str, compiled: bool, tile: tuple[int, int] | None) -> Levels:
    values = TYPICAL if compiled else VALUES
    if tile is not None:
        more = dict(zip(("queries", "keys"), map(edges, tile), strict=True))
        values = values | {name: (*values[name], *sizes) for name, sizes in more.items()}
    varied = {name: classes(values[name], *ends) for name, ends in RANGES[plan].items()}
    return {name: varied.get(name, (SINGLE[name],)) for name in SINGLE}


@cache
def level_rows(plan: str, compiled: bool, tile: tuple[int, int] | None, strength: int) -> list[LevelRow]:
    return covering(levels_of(plan, compiled, tile), budget_of(plan).affords, strength)


def budget_of(plan: str) -> Budget:
    return WHOLE if plan == "everything" else LESS


@cache
def rows(plan: str, compiled: bool, tile: tuple[int, int] | None, seed: int = 0, strength: int = 2) -> tuple[Row, ...]:
    """Rows of a plan of `RANGES`; "everything" has every size of `VALUES`.

    compiled: for a framework that compiles for every shape, so only `TYPICAL` sizes, each range once. tile: queries and
    keys of a kernel's tile, whose multiples and their neighbours are tried too. seed: chooses among sizes of one range.
    """
    level_rows_of_plan = level_rows(plan, compiled, tile, 1 if compiled else strength)
    levels, affords = levels_of(plan, compiled, tile), budget_of(plan).affords
    return tuple(choose_sizes(level_rows_of_plan, levels, affords, SINGLE if plan == "everything" else (), seed))


def edges(tile: int) -> tuple[int, ...]:
    """Sizes around one and two tiles."""
    return tuple(n for n in (tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile, 2 * tile + 1) if n > 0)


def sizes_of(row: Row) -> Sizes:
    """The row as sizes of attention."""
    B, G, Q, K = row["batch"], row["key_heads"], row["queries"], row["keys"]
    return Sizes(B, G * row["group_ratio"], G, Q, K, row["key_width"], row["value_width"])


def plan_of(name: str, declaration: Declaration, seed: int = 0, strength: int = 2) -> tuple[Sizes, ...]:
    """The sizes of a plan, as the subject takes them; each once.

    Where shapes are compiled, all plans have those of "everything", so that what is compiled serves every probe.
    """
    name, seed = ("everything", 0) if declaration.compiled else (name, seed)
    planned = (sizes_of(row) for row in rows(name, declaration.compiled, declaration.tile, seed, strength))
    return tuple(dict.fromkeys(fit_sizes(sizes, declaration) for sizes in planned))


def large_plans_of(
    name: str, declaration: Declaration, seed: int, wanted: Callable[[Sizes], bool]
) -> tuple[tuple[Sizes, ...], tuple[Sizes, ...]]:
    """More sizes, and those of the thorough effort: for the pairs of ranges that only a large budget affords.

    None where shapes are compiled. wanted: whether the operation takes cases of such sizes.
    """
    if declaration.compiled:
        return (), ()

    def make_fits(budget: Budget) -> Fits:
        return lambda row: budget.affords(row) and wanted(sizes_of(row))

    def fitted(rows: Iterable[Row], most: Budget) -> tuple[Sizes, ...]:
        return tuple(dict.fromkeys(fit_sizes(sizes_of(row), declaration, most) for row in rows))

    levels = levels_of(name, False, declaration.tile)
    before = [row for row in rows(name, False, declaration.tile, seed) if wanted(sizes_of(row))]
    large = more_rows(levels, make_fits(LARGE), before, make_fits(SPARE), seed)
    largest = more_rows(levels, make_fits(LARGEST), [*before, *large], make_fits(SPARE), seed)
    ordinary = fitted([row_of(ORDINARY)] if name == "everything" else [], LARGEST)
    return (*fitted(large, LARGE), *ordinary), fitted(largest, LARGEST)


def fit_sizes(s: Sizes, declaration: Declaration, most: Budget = MOST) -> Sizes:
    """The sizes as the subject takes them, and no larger than any case may be.

    Where there are as many queries as keys, or widths in multiples, what was one large dimension may become two.
    """
    if "cross" not in declaration:
        s = s._replace(Q=max(s.Q, s.K))
    s = adapt_sizes(s, declaration)
    while not most.affords(row_of(s)):
        s = adapt_sizes(s._replace(**halve_largest(s, "cross" in declaration)), declaration)
    return s


def halve_largest(s: Sizes, cross: bool) -> dict[str, int]:
    """The largest of batch, heads, queries and keys halved; heads with their key heads, queries with as many keys."""
    largest = max(("B", "H", "Q", "K"), key=lambda name: getattr(s, name))
    together = {"H": ("H", "G")} | ({} if cross else {"Q": ("Q", "K"), "K": ("Q", "K")})
    return {name: max(1, getattr(s, name) // 2) for name in together.get(largest, (largest,))}


def row_of(s: Sizes) -> Row:
    """The sizes as a row."""
    row = {"batch": s.B, "key_heads": s.G, "group_ratio": s.H // max(s.G, 1), "queries": s.Q, "keys": s.K}
    return row | {"key_width": s.D, "value_width": s.V}


ORDINARY = Sizes(1, 1, 1, 2048, 2048, 64, 64)
"""A head of a model."""
SQUARE = Sizes(1, 1, 1, 4097, 4097, 1, 1)
"""More pairs than float32 has integers in a row: 2^24."""


def thorough_plan(declaration: Declaration) -> tuple[Sizes, ...]:
    """Sizes for the thorough effort: every three ranges of dimensions meet, and 4,097 queries meet 4,097 keys."""
    square = adapt_sizes(SQUARE, declaration)
    squares = (square,) if square.D + square.V <= 8 else ()
    return squares if declaration.compiled else (*plan_of("everything", declaration, strength=3), *squares)


def has_any_sizes(sizes: Sizes) -> bool:
    return True


def has_grouped_heads(sizes: Sizes) -> bool:
    return sizes.H > sizes.G


def has_few_columns(sizes: Sizes) -> bool:
    """Whether the projections of so many heads have no more columns than models have."""
    return sizes.H <= 128 and sizes.H * (sizes.D + sizes.V) <= 2**14


def rows_of_attention(
    cases: Callable[..., st.SearchStrategy[Case]],
    plan: str,
    name: str,
    declaration: Declaration,
    wanted: Callable[[Sizes], bool] = has_any_sizes,
    dtypes: tuple[str, ...] = SIMPLEST_FIRST,
    large: bool = False,
) -> Rows:
    """One strategy for each row of a plan. By its name, each probe has other sizes of the same ranges.

    Where shapes are compiled, each row has one dtype too. large: also rows of large cases, in which all ranges meet.
    """
    seed = zlib.crc32(name.encode())
    able = [dtype for dtype in dtypes if dtype in declaration.dtypes and dtype != "float64"] or [*dtypes]

    def make_strategies(sizes: tuple[Sizes, ...]) -> tuple[st.SearchStrategy[Case], ...]:
        every = [(able[index % len(able)],) if declaration.compiled else dtypes for index in range(len(sizes))]
        return tuple(cases(plans=(s,), dtypes=some) for s, some in zip(sizes, every, strict=True) if wanted(s))

    def make_large(thorough: bool) -> tuple[st.SearchStrategy[Case], ...]:
        sizes = large_plans_of(plan, declaration, seed, wanted)[thorough] if large else ()
        triples = thorough_plan(declaration) if thorough and plan == "everything" else ()
        return make_strategies((*triples, *sizes))

    return Rows(
        lambda: make_strategies(plan_of(plan, declaration, seed)),
        later=lambda: make_large(True),
        large=lambda: make_large(False),
    )
