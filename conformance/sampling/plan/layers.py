"""Rows of the plan for norms, feed-forward, embedding, positions, their biases and losses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from conformance.cases.declaration import Declaration
from conformance.sampling.plan.covering import LevelRow, Levels, Row, choose_sizes, covering
from conformance.sampling.plan.values import classes

NUMBERS, MULTIPLICATIONS = 2**18, 2**22
"""At most, in one case: numbers in an array, multiplications."""

Values = dict[str, tuple[int, ...]]


class Plan(NamedTuple):
    """The sizes of an operation's dimensions. typical: for frameworks that compile for every shape."""

    values: Values
    typical: Values


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


def affordable(row: Row) -> bool:
    """Whether a case of these sizes is cheap, whatever the operation."""
    rows, width = (
        row.get("rows", row.get("length", 1)) * row.get("heads", 1),
        row.get("norm_width", row.get("model_width", 1)),
    )
    inner, outer, table = row.get("inner_width", 0), row.get("outer_width", 0), row.get("vocabulary", 0)
    pairs = row.get("heads", 0) * row.get("queries", 0) * row.get("keys", 0)
    numbers = pairs, rows * max(width, inner, outer, row.get("classes", 0)), max(width, outer) * inner, table * width
    return max(numbers) <= NUMBERS and rows * inner * (width + outer) <= MULTIPLICATIONS


def levels_of(plan: Plan, compiled: bool) -> Frozen:
    values = plan.typical if compiled else plan.values
    return tuple((name, classes(sizes, *ENDS[name])) for name, sizes in values.items())


def plan_of(plan: Plan, declaration: Declaration, seed: int = 0) -> tuple[Row, ...]:
    """The rows of a plan, within what the subject takes; each once. Every size of the plan occurs."""
    compiled = declaration.compiled
    found = rows(levels_of(plan, compiled), 1 if compiled else 2, 0 if compiled else seed)
    limited = [limit_row(row, declaration.limits) for row in found]
    return tuple(dict(items) for items in dict.fromkeys(tuple(row.items()) for row in limited))


@cache
def level_rows(levels: Frozen, strength: int) -> list[LevelRow]:
    return covering(dict(levels), affordable, strength)


@cache
def rows(levels: Frozen, strength: int, seed: int) -> tuple[Row, ...]:
    ranges: Levels = dict(levels)
    return tuple(choose_sizes(level_rows(levels, strength), ranges, affordable, ranges, seed))


def limit_row(row: Row, limits: Mapping[str, int]) -> Row:
    """The row with every size at most what is declared."""
    return {name: min(size, limits.get(name, size)) for name, size in row.items()}
