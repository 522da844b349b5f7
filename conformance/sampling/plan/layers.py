"""Rows of the plan for norms, feed-forward, embedding, positions, their biases and losses."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import WIDTH_NAMES, Declaration, fit_width
from conformance.sampling.draws import Rows
from conformance.sampling.plan.covering import (
    KEY_HEADS,
    LENGTHS,
    MODEL_WIDTHS,
    NORM_WIDTHS,
    POSITIONS,
    ROWS,
    VOCABULARIES,
    WIDTHS,
    LevelRow,
    Levels,
    Row,
    choose_sizes,
    classes,
    covering,
    more_rows,
    neighbouring_sizes,
)


class Budget(NamedTuple):
    """What one case may have at most: numbers in an array, multiplications in products of matrices."""

    numbers: int
    multiplications: int

    def affords(self, row: Row) -> bool:
        """Whether a case of these sizes is within the budget, whatever the operation."""
        rows = row.get("rows", row.get("length", 1)) * row.get("heads", 1)
        width = row.get("norm_width", row.get("model_width", 1))
        inner, outer, table = row.get("inner_width", 0), row.get("outer_width", 0), row.get("vocabulary", 0)
        pairs = row.get("heads", 0) * row.get("queries", 0) * row.get("keys", 0)
        columns = max(width, inner, outer, row.get("classes", 0))
        numbers = pairs, rows * columns, max(width, outer) * inner, table * width
        return max(numbers) <= self.numbers and rows * inner * (width + outer) <= self.multiplications

    def times(self, factor: float) -> Budget:
        """So many times as many numbers, of which products of matrices take the cube."""
        return Budget(int(factor * self.numbers), int(factor**3 * self.multiplications))


SMALL = Budget(2**18, 2**22)
LARGE = Budget(2**20 + 2**17, 2**27)
"""For pairs of ranges that do not meet within the small one: 1,025 rows of as many columns. A case takes a tenth of a
second, a network with its gradients half a second; the judge then holds less than 1 GB. Past half of the budget all
sizes are the smallest of their ranges."""

Values = dict[str, tuple[int, ...]]


class Plan(NamedTuple):
    """The sizes of an operation's dimensions. typical: for frameworks that compile for every shape.

    ordinary: rows of sizes that models have together, beside those in which ranges meet at their smallest sizes.
    """

    values: Values
    typical: Values
    ordinary: tuple[Row, ...] = ()


NORMS = Plan(
    values={"rows": ROWS, "norm_width": NORM_WIDTHS},
    typical={"rows": (3, 40, 129, 1025, 65537), "norm_width": (5, 40, 257, 1025, 3000, 20480, 65537)},
    ordinary=({"rows": 512, "norm_width": 2048},),
)
NETWORKS = Plan(
    values={
        "rows": ROWS,
        "model_width": MODEL_WIDTHS,
        "inner_width": MODEL_WIDTHS,
        "outer_width": (1, 3, 5, 129, 1025),
    },
    typical={"rows": (3, 130, 65537), "model_width": (5, 257, 3000), "inner_width": (7, 513, 4097)}
    | {"outer_width": (3, 5)},
    ordinary=(
        {"rows": 256, "model_width": 256, "inner_width": 1024, "outer_width": 256},
        {"rows": 512, "model_width": 512, "inner_width": 2048, "outer_width": 512},
    ),
)
ROUTERS = Plan(
    values={"rows": tuple(rows for rows in ROWS if rows < 16384), "model_width": MODEL_WIDTHS},
    typical={"rows": (3, 130), "model_width": (5, 257, 3000)},
)
MIXTURES = Plan(
    values={"rows": (1, 3, 17, 130, 257, 1025), "model_width": (3, 17, 130, 512), "inner_width": (3, 17, 130, 513)},
    typical={"rows": (3, 130), "model_width": (5, 257), "inner_width": (7, 130)},
)
ROUTER_LOSSES = Plan(values={"rows": ROWS}, typical={"rows": (3, 130)})
SILU = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})
EMBEDDING = Plan(
    values={"rows": ROWS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"rows": (3, 130, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    ordinary=({"rows": 12, "vocabulary": 262144, "model_width": 4},),
)
LEARNED = Plan(
    values={"length": POSITIONS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    ordinary=tuple(
        {"length": length, "vocabulary": length, "model_width": width}
        for length, width in ((64, 16), (512, 768), (512, 2048), (2048, 512))
    ),
)
SINUSOIDAL = Plan(
    values={"length": POSITIONS, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "model_width": (5, 320, 5000)},
)
BIASES = Plan(
    values={"heads": KEY_HEADS, "queries": ROWS, "keys": LENGTHS},
    typical={"heads": (3, 32), "queries": (3, 130, 1025), "keys": (5, 129, 65537)},
)
ROTARY = Plan(
    values={
        "heads": (1, *KEY_HEADS),
        "length": (1, 2, 5, 12, *neighbouring_sizes(*range(4, 12))),
        "model_width": tuple(width for width in WIDTHS if width % 2 == 0),
    },
    typical={"heads": (3, 32), "length": (5, 129, 1025), "model_width": (6, 64, 320)},
)
FREQUENCIES = Plan(
    values={"model_width": tuple(width for width in MODEL_WIDTHS if width % 2 == 0)},
    typical={"model_width": (8, 128, 1000)},
)
LOSSES = Plan(
    values={"rows": ROWS, "classes": (1, 2, 3, *VOCABULARIES)},
    typical={"rows": (3, 130, 65537), "classes": (5, 1000, 65537)},
    ordinary=tuple({"rows": rows, "classes": classes} for rows, classes in ((9, 128256), (7, 151936), (4, 262144))),
)
STEPS = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})
PLANS = {
    **dict.fromkeys(("layer_norm", "rms_norm", "standard_deviation_norm"), NORMS),
    **dict.fromkeys(("feed_forward", "gated_feed_forward"), NETWORKS),
    "silu": SILU,
    "route": ROUTERS,
    "mixture_of_experts": MIXTURES,
    **dict.fromkeys(("load_balancing_loss", "router_z_loss"), ROUTER_LOSSES),
    "embedding": EMBEDDING,
    "learned_positions": LEARNED,
    "sinusoidal_positions": SINUSOIDAL,
    **dict.fromkeys(("alibi_bias", "relative_position_bias"), BIASES),
    "rotary_embedding": ROTARY,
    "rotary_frequencies": FREQUENCIES,
    **dict.fromkeys(("cross_entropy", "nll_loss"), LOSSES),
    **dict.fromkeys(("adam_step", "sgd_step", "clip_by_global_norm"), STEPS),
}
"""By operation."""

Frozen = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
"""Levels by dimension, as a key under which rows are kept."""

ENDS = {
    "rows": (1, 16, 128, 1024, 16384),
    "norm_width": (16, 128, 1024, 4096, 16384),
    "model_width": (16, 128, 1024),
    "inner_width": (16, 128, 1024),
    "outer_width": (),
    "vocabulary": (16, 1024),
    "classes": (16, 128, 1024, 16384),
    "length": (16, 128, 1024),
    "heads": (4, 8, 32),
    "queries": (16, 1024),
    "keys": (16, 128, 1024),
}
"""Where the ranges end whose pairs must meet."""


def levels_of(plan: Plan, compiled: bool) -> Frozen:
    values = plan.typical if compiled else plan.values
    return tuple((name, classes(sizes, *ENDS[name])) for name, sizes in values.items())


def plan_of(plan: Plan, declaration: Declaration, seed: int = 0) -> tuple[Row, ...]:
    """The rows of a plan, within what the subject takes; each once. Every size of the plan occurs."""
    compiled = declaration.compiled
    planned = rows(levels_of(plan, compiled), 1 if compiled else 2, 0 if compiled else seed)
    return limit_rows(planned, declaration)


def large_plans_of(
    plan: Plan, declaration: Declaration, seed: int, large: float
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """More rows, and those of the thorough effort: the ordinary ones, and those for the pairs of ranges that only a
    large budget affords. None where shapes are compiled.

    large: how many times the numbers of `LARGE` a case may have; at the thorough effort twice as many.
    """
    if declaration.compiled or not large:
        return (), ()
    levels = levels_of(plan, False)
    before, ordinary, plans = [*rows(levels, 2, seed)], [*plan.ordinary], []
    for budget in (LARGE.times(large), LARGE.times(2 * large)):
        more = more_rows(dict(levels), budget.affords, before, budget.times(0.5).affords, seed)
        affordable = [row for row in ordinary if budget.affords(row)]
        plans.append(limit_rows([*more, *affordable], declaration))
        before, ordinary = [*before, *more], [row for row in ordinary if row not in affordable]
    return plans[0], plans[1]


@cache
def level_rows(levels: Frozen, strength: int) -> list[LevelRow]:
    return covering(dict(levels), SMALL.affords, strength)


@cache
def rows(levels: Frozen, strength: int, seed: int) -> tuple[Row, ...]:
    ranges: Levels = dict(levels)
    return tuple(choose_sizes(level_rows(levels, strength), ranges, SMALL.affords, ranges, seed))


def limit_rows(rows: Iterable[Row], declaration: Declaration) -> tuple[Row, ...]:
    """The rows with every size at most what is declared, and widths in multiples of what is; each once."""

    def fit(name: str, size: int) -> int:
        is_width = name in (*WIDTH_NAMES, "outer_width")
        return fit_width(size, name, declaration) if is_width else min(size, declaration.limits.get(name, size))

    limited = (tuple((name, fit(name, size)) for name, size in row.items()) for row in rows)
    return tuple(dict(items) for items in dict.fromkeys(limited))


def rows_of_layers(
    operation: str,
    cases: Callable[[Row], st.SearchStrategy[Case]],
    declaration: Declaration,
    name: str = "",
    large: float = 1,
) -> Rows:
    """One strategy for each row of a plan. By its name, each probe has other sizes of the same ranges.

    large: how many times the numbers of `LARGE` a case may have; at the thorough effort twice as many.
    """
    seed = zlib.crc32(name.encode())

    def make_large(thorough: bool) -> tuple[st.SearchStrategy[Case], ...]:
        return tuple(map(cases, large_plans_of(PLANS[operation], declaration, seed, large)[thorough]))

    return Rows(
        lambda: tuple(map(cases, plan_of(PLANS[operation], declaration, seed))),
        later=lambda: make_large(True),
        large=lambda: make_large(False),
    )
