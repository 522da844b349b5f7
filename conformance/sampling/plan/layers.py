"""Rows of the plan for norms, feed-forward, embedding and positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from conformance.cases.declaration import Declaration
from conformance.sampling.plan.covering import LevelRow, Levels, Row, covering, with_sizes
from conformance.sampling.plan.values import MODEL_WIDTHS, NORM_WIDTHS, POSITIONS, ROWS, VOCABULARIES, classes

NUMBERS, MULTIPLICATIONS = 2**18, 2**22
"""At most, in one case: numbers in an array, multiplications."""

Values = dict[str, tuple[int, ...]]

VALUES: dict[str, Values] = {
    "norm": {"rows": ROWS, "norm_width": NORM_WIDTHS},
    "feed_forward": {"rows": ROWS, "model_width": MODEL_WIDTHS, "inner_width": MODEL_WIDTHS}
    | {"outer_width": (1, 3, 5, 129, 1025)},
    "embedding": {"rows": ROWS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    "learned_positions": {"length": POSITIONS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    "sinusoidal_positions": {"length": POSITIONS, "model_width": MODEL_WIDTHS},
}
TYPICAL: dict[str, Values] = {
    "norm": {"rows": (3, 40, 129, 1025, 65537), "norm_width": (5, 40, 257, 1025, 3000, 20480, 65537)},
    "feed_forward": {"rows": (3, 130, 65537), "model_width": (5, 257, 3000), "inner_width": (7, 513, 4097)}
    | {"outer_width": (3, 5)},
    "embedding": {"rows": (3, 130, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    "learned_positions": {"length": (5, 129, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
    "sinusoidal_positions": {"length": (5, 129, 65537), "model_width": (5, 320, 5000)},
}
"""For frameworks that compile for every shape."""
ENDS = {
    "rows": (16, 128, 1024, 16384),
    "norm_width": (16, 128, 1024, 4096, 16384),
    "model_width": (16, 128, 1024),
    "inner_width": (16, 128, 1024),
    "outer_width": (),
    "vocabulary": (16, 1024),
    "length": (16, 128, 1024),
}
"""Where the ranges end whose pairs must meet."""


def affordable(row: Row) -> bool:
    """Whether a case of these sizes is cheap, whatever the operation."""
    rows, width = row.get("rows", row.get("length", 1)), row.get("norm_width", row.get("model_width", 1))
    inner, outer, table = row.get("inner_width", 0), row.get("outer_width", 0), row.get("vocabulary", 0)
    numbers = rows * max(width, inner, outer), max(width, outer) * inner, table * width
    return max(numbers) <= NUMBERS and rows * inner * (width + outer) <= MULTIPLICATIONS


def levels_of(operation: str, compiled: bool) -> Levels:
    values = (TYPICAL if compiled else VALUES)[operation]
    return {name: classes(sizes, *ENDS[name]) for name, sizes in values.items()}


@cache
def level_rows(operation: str, compiled: bool) -> list[LevelRow]:
    return covering(levels_of(operation, compiled), affordable, 1 if compiled else 2)


@cache
def rows(operation: str, compiled: bool, seed: int = 0) -> tuple[Row, ...]:
    """Rows of the plan for an operation; every size of `VALUES` or `TYPICAL` occurs."""
    levels = levels_of(operation, compiled)
    return tuple(with_sizes(level_rows(operation, compiled), levels, affordable, levels, seed))


def plan_of(operation: str, declaration: Declaration, seed: int = 0) -> tuple[Row, ...]:
    """The rows for an operation, within what the subject takes; each once."""
    found = rows(operation, declaration.compiled, 0 if declaration.compiled else seed)
    limited = [within(row, declaration.limits) for row in found]
    return tuple(dict(items) for items in dict.fromkeys(tuple(row.items()) for row in limited))


def within(row: Row, limits: Mapping[str, int]) -> Row:
    """The row with every size at most what is declared."""
    return {name: min(size, limits.get(name, size)) for name, size in row.items()}
