"""Tables of rows read wrongly (EMB-1): which rows are read, by what they are scaled, how their gradients add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import add_rounding_bounds, answer_with, lose_results, round_to
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Mistake, Prediction, Topic, name_entries
from reference_numpy.positions import buckets_of
from specification.dtypes import HALF

GRADIENT = gradient_name("table")
BACKWARD = Condition(passes="backward")
SIZES = (256, 64, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Of tables, and of the blocks and grids of kernels."""

# --- which rows are read ----------------------------------------------------------------------------------------------


def rows_of(case: Case) -> np.ndarray:
    """The rows of the table that are read, in order."""
    if "ids" in case.inputs:
        return np.asarray(case.inputs["ids"].reshape(-1), int)
    offset = case.options.get("offset") or 0
    if case.operation == "learned_positions":
        return np.arange(case.options["length"]) + offset
    sizes = (case.options["query_length"], case.options["key_length"], offset, len(case.inputs["table"]))
    buckets = buckets_of(*sizes, case.options["bidirectional"], case.options.get("furthest", 128))
    return np.asarray(buckets).reshape(-1)


def cotangents_of(case: Case) -> np.ndarray:
    """The cotangent of every row that is read, times sqrt(E) where rows are scaled."""
    width, cotangent = int(case.inputs["table"].shape[1]), case.cotangents["output"].astype(float)
    if case.operation == "relative_position_bias":
        cotangent = np.moveaxis(cotangent[0], 0, -1)
    return np.asarray(cotangent.reshape(-1, width) * (np.sqrt(width) if case.options.get("scaled") else 1.0))


def add_up(case: Case, rows: np.ndarray, cotangents: np.ndarray) -> np.ndarray:
    """The table's gradient."""
    total = np.zeros(case.inputs["table"].shape)
    np.add.at(total, rows, cotangents)
    return total


def look_up(case: Case, rows: np.ndarray) -> Results:
    """The results where these rows are read; of relative positions [Q, K]."""
    table = case.inputs["table"].astype(float)
    shape = case.inputs["ids"].shape if "ids" in case.inputs else rows.shape
    read = table[rows] * (np.sqrt(table.shape[1]) if case.options.get("scaled") else 1.0)
    relative = case.operation == "relative_position_bias"
    found = {"output": np.moveaxis(read, -1, 0)[None] if relative else read.reshape(*shape, table.shape[1])}
    return found | ({GRADIENT: add_up(case, rows.reshape(-1), cotangents_of(case))} if case.cotangents else {})


def read_rows(change: Callable[..., np.ndarray]) -> Callable[..., Results | None]:
    """Read rows `change(rows, count, **values)` of a table of `count` rows; negative ones count from the end."""

    def answer(call: Call, **values: object) -> Results | None:
        rows, count = rows_of(call.case), len(call.case.inputs["table"])
        other = np.asarray(change(rows, count, **values), int)
        other = np.where(other < 0, other + count, other)
        if np.array_equal(other, rows) or np.any((other < 0) | (other >= count)):
            return None
        return look_up(call.case, other)

    return answer


def show(visible: Callable[..., np.ndarray]) -> Callable[..., Results | None]:
    """Return 0 but where `visible(rows, width, count, **values)`, [n, 1] or [width], holds; so do gradients."""

    def answer(call: Call, **values: object) -> Results | None:
        rows, (count, width) = rows_of(call.case), call.case.inputs["table"].shape
        shown = np.broadcast_to(visible(rows, width, count, **values), (rows.size, width))
        return lose_results(call, shown.reshape(call.right["output"].shape))

    return answer


READINGS: tuple[tuple[str, str, Callable[..., Any], dict[str, Any]], ...] = (
    ("rows-in-dtype", "the numbers of rows are kept in {dtype}",
     read_rows(lambda rows, count, dtype: round_to(rows, dtype)),
     {"dtype": ("int8", "int16", "float16", "bfloat16")}),
    ("rows-end", "rows past {size} - 1 are taken for {size} - 1",
     read_rows(lambda rows, count, size: np.minimum(rows, size - 1)), {"size": (*SIZES, 32767)}),
    ("rows-start-anew", "the number of a row is taken modulo {size}",
     read_rows(lambda rows, count, size: rows % size), {"size": SIZES}),
    ("rows-unread", "rows of the table past the first {first} are read as 0",
     show(lambda rows, width, count, first: (rows < first)[:, None]), {"first": SIZES}),
    ("places-lost", "results past the first {first} rows are 0",
     show(lambda rows, width, count, first: (np.arange(rows.size) < first)[:, None]), {"first": SIZES}),
    ("columns-lost", "columns past the first {first} are 0",
     show(lambda rows, width, count, first: np.arange(width) < first), {"first": SIZES}),
    ("last-block-lost", "the last block of results, which is not whole, is 0 (blocks of {block} rows)",
     show(lambda rows, width, count, block: (np.arange(rows.size) < rows.size // block * block)[:, None]),
     {"block": (4, 8, 16, 32, 64, 128, 256)}),
)  # fmt: skip


def reading_mistakes(topic: Topic, prefix: str = "") -> tuple[Mistake, ...]:
    """Mistakes of any operation that reads rows of a table."""
    return tuple(topic.entry(prefix + name, says, change, **values) for name, says, change, values in READINGS)


# --- scales -----------------------------------------------------------------------------------------------------------


def scale_by(call: Call, factor: str) -> Results:
    width = call.case.inputs["table"].shape[1]
    ratio = {"1": width**-0.5, "E": width**0.5, "1 / sqrt(E)": 1 / width}[factor]
    return {name: array * ratio for name, array in call.right.items()}


def round_root(call: Call) -> list[Prediction]:
    """sqrt(E) in the 16 bits of the table; the gradient in float32, or as PyTorch adds it up."""
    case, root = call.case, np.sqrt(call.case.inputs["table"].shape[1])
    if case.dtype not in HALF:
        return []
    ratio = round_to(root, case.dtype) / root
    results = {name: array * ratio for name, array in call.right.items()}
    narrow = {GRADIENT: add_up_narrowly(case, ratio)} if case.cotangents else {}
    return [add_rounding_bounds(call, found) for found in (results, results | narrow)]


# --- gradients of rows that are read several times --------------------------------------------------------------------


def count_once(call: Call, occurrence: str) -> Results:
    rows, order = rows_of(call.case), slice(None, None, 1 if occurrence == "last" else -1)
    gradient = np.zeros(call.case.inputs["table"].shape)
    gradient[rows[order]] = cotangents_of(call.case)[order]
    return {GRADIENT: gradient}


def divide_by_count(call: Call) -> Results:
    """As scale_grad_by_freq of PyTorch's embedding does."""
    counts = np.bincount(rows_of(call.case), minlength=len(call.case.inputs["table"]))
    return {GRADIENT: call.right[GRADIENT] / np.maximum(counts, 1)[:, None]}


def add_up_narrowly(case: Case, ratio: float | np.ndarray = 1.0) -> np.ndarray:
    """The gradient in the 16 bits of the table, the cotangents one by one. ratio: of these to the right ones."""
    rows, total = rows_of(case), np.zeros(case.inputs["table"].shape)
    cotangents = round_to(cotangents_of(case) * ratio, case.dtype)
    order = np.argsort(rows, kind="stable")
    starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
    turns = np.arange(rows.size) - np.repeat(starts, np.diff(starts, append=rows.size))
    for turn in range(int(turns.max(initial=-1)) + 1):  # the first of every row, then the second
        now = order[turns == turn]
        total[rows[now]] = round_to(total[rows[now]] + cotangents[now], case.dtype)
    return total


def gradient_mistakes(topic: Topic, prefix: str = "") -> tuple[Mistake, ...]:
    """Mistakes of gradients of any table."""
    return (
        topic.entry(f"{prefix}counted-once", "a row that is read several times gets the gradient of the {occurrence}",
                    count_once, needs=("gradients",), occurrence=("last", "first")),
        topic.entry(f"{prefix}divided-by-count", "a row's gradient is divided by how often it is read",
                    divide_by_count, needs=("gradients",)),
        topic.entry(f"{prefix}added-up-narrowly", "a row's gradients are added up in the 16 bits of the table",
                    lambda call: add_rounding_bounds(call, {GRADIENT: add_up_narrowly(call.case)})
                    if call.case.dtype in HALF else None, needs=("gradients",)),
    )  # fmt: skip


TOPIC = Topic("lookups", "EMB-1", ("embedding",))
MISTAKES = (
    *reading_mistakes(TOPIC),
    TOPIC.entry("padding-row", "row {row} of the table is read as 0",
                show(lambda rows, width, count, row: (rows != row % count)[:, None]), row=(0, -1, 1)),
    TOPIC.entry("scale", "rows are multiplied by {factor}, not by sqrt(E)", scale_by, needs=("scaled",),
                factor=("E", "1", "1 / sqrt(E)")),
    TOPIC.entry("rows-shifted", "every id is off by {by}",
                read_rows(lambda rows, count, by: np.clip(rows + by, 0, count - 1)), by=(1, -1)),
    TOPIC.entry("halves-of-ids", "64-bit ids are read as 32-bit ones",
                read_rows(lambda rows, count: np.stack([rows, 0 * rows], -1).reshape(-1)[: rows.size])),
    TOPIC.entry("scaled-unasked", "rows are multiplied by sqrt(E) though not asked", answer_with(scaled=True)),
    TOPIC.entry("root-rounded", "sqrt(E) is rounded to the 16 bits of the table", round_root, needs=("scaled",)),
    *gradient_mistakes(TOPIC),
)  # fmt: skip
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(NAMED["rows-in-dtype"].choose(dtype=dtype) for dtype in ("int16", "float16")),
    *(NAMED["rows-start-anew"].choose(size=size) for size in (1024, 32768, 65536)),
    *(NAMED["rows-end"].choose(size=size) for size in (4096, 32767)),
    *(NAMED["columns-lost"].choose(first=first) for first in (64, 1024, 8192)),
    *(NAMED["places-lost"].choose(first=first) for first in (1024, 32768, 65536)),
    *(NAMED["rows-unread"].choose(first=first).limit(BACKWARD) for first in (256, 32768)),
    NAMED["last-block-lost"].choose(block=16).limit(BACKWARD),
    *(NAMED["padding-row"].choose(row=row).limit(BACKWARD) for row in (0, -1)),
    NAMED["scale"].choose(factor="1"),
    NAMED["scale"].choose(factor="1").limit(BACKWARD),
)
