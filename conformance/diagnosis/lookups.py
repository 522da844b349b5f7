"""Known mistakes of embedding and learned positions: which rows of the table are read, and which get a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.diagnosis.extents import roundest
from conformance.diagnosis.matching import Arrays, Failing, Mistake, close, giving, instead, resulting
from conformance.diagnosis.row_sums import RowSum, to_dtype, wrongly_counted
from specification.dtypes import HALF

NAME = "gradient of table"
FEW = 64
"""Rows that are looked for in the table."""


def ids_of(case: Case) -> np.ndarray:
    """The rows of the table that are read, in order."""
    if "ids" in case.inputs:
        return case.inputs["ids"].reshape(-1).astype(int)
    return np.arange(case.options["length"]) + (case.options.get("offset") or 0)


def bar_of(failing: Failing) -> np.ndarray:
    """The cotangent of every row that is read, times sqrt(E) where rows are scaled."""
    width = failing.case.inputs["table"].shape[1]
    return failing.bar.reshape(-1, width) * (np.sqrt(width) if failing.case.options.get("scaled") else 1.0)


# --- which rows are read ----------------------------------------------------------------------------------------------


def read_as(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[Case], Case | None]:
    """With other ids, from those of the case and the number of rows; None where these are the same, or no rows."""

    def changed(case: Case) -> Case | None:
        rows, ids = len(case.inputs["table"]), case.inputs.get("ids")
        if ids is None:
            return None
        other = np.asarray(change(ids.astype(np.int64), rows))
        if np.array_equal(other, ids) or np.any((other < 0) | (other >= rows)):
            return None
        return replace(case, inputs=case.inputs | {"ids": other.astype(ids.dtype)})

    return changed


def wrapped(bits: int, signed: bool) -> Callable[[np.ndarray, int], np.ndarray]:
    """In so many bits; what comes out negative counts from the end."""

    def change(ids: np.ndarray, rows: int) -> np.ndarray:
        low = ids & (2**bits - 1)
        low = np.where(low >= 2 ** (bits - 1), low - 2**bits, low) if signed else low
        return np.where(low < 0, low + rows, low)

    return change


def halves(ids: np.ndarray, rows: int) -> np.ndarray:
    """Memory of 64-bit ids read as 32-bit ones."""
    return np.stack([ids, 0 * ids], -1).reshape(-1)[: ids.size].reshape(ids.shape)


READ_OTHERWISE: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "ids are kept in 16 bits": wrapped(16, False),
    "ids are kept in 16 bits with a sign": wrapped(16, True),
    "ids are kept in 8 bits": wrapped(8, False),
    "ids are kept in 8 bits with a sign": wrapped(8, True),
    "ids are rounded to float16": lambda ids, rows: to_dtype(ids, "float16"),
    "ids are rounded to bfloat16": lambda ids, rows: to_dtype(ids, "bfloat16"),
    "64-bit ids are read as 32-bit ones": halves,
    "every id is taken for the one before it": lambda ids, rows: np.maximum(ids - 1, 0),
    "every id is taken for the one after it": lambda ids, rows: np.minimum(ids + 1, rows - 1),
}


def with_rounded_root(failing: Failing) -> Arrays | None:
    """sqrt(E) in the 16 bits of the table."""
    case, dtype = failing.case, failing.case.dtype
    if not case.options.get("scaled") or dtype not in HALF:
        return None
    root = np.sqrt(case.inputs["table"].shape[1])
    rounded = to_dtype(root, dtype) / root
    return {name: exact.high * rounded for name, exact in failing.truth.items()}


MISTAKES = (
    *(instead(name, read_as(change)) for name, change in READ_OTHERWISE.items()),
    resulting("sqrt(E) is rounded to the dtype of the table", with_rounded_root, strict=True),
)


def measured(failing: Failing, name: str) -> Iterator[Mistake]:
    """Mistakes in one result, with numbers that the answers tell."""
    if name == "output":
        yield from unread(failing)
        yield from read_elsewhere(failing)
    elif name == NAME:
        yield from without_gradient(failing)
        yield from counted_once(failing)
        of = row_sums(failing)[NAME]
        yield from wrongly_counted(failing, NAME, of)
        yield from added_up_in_16_bits(failing, ids_of(failing.case), bar_of(failing))


def boundary(wrong: np.ndarray, right: np.ndarray) -> int:
    """The number from which on rows are wrong: the largest power of two that it may be, or else the roundest number."""
    first = int(wrong.min())
    least, power = int(right[right < first].max(initial=-1)) + 1, 1 << max(first.bit_length() - 1, 0)
    return power if least <= power <= first else roundest(np.arange(least, first + 1))[0]


def unread(failing: Failing) -> Iterator[Mistake]:
    """Rows of the table from one on are read as 0."""
    ids, right = ids_of(failing.case), failing.right("output")
    off = failing.off("output").reshape(len(ids), -1).any(axis=1)
    if not off.any():
        return
    n, row = boundary(ids[off], ids[~off]), int(ids[off].min())
    for words, missing in (
        (f"rows of the table past the first {n} are read as 0", ids >= n),
        (f"row {row} of the table is read as 0", ids == row),
    ):
        yield giving(words, "output", np.where(missing[:, None], 0, right.reshape(len(ids), -1)).reshape(right.shape))


def read_elsewhere(failing: Failing) -> Iterator[Mistake]:
    """Ids or positions that are cut off, or begin anew: which rows are read is told by the answers."""
    case, ids, things = failing.case, ids_of(failing.case), "ids" if "ids" in failing.case.inputs else "positions"
    table = case.inputs["table"].astype(float) * (
        np.sqrt(case.inputs["table"].shape[1]) if case.options.get("scaled") else 1
    )
    got = failing.answer("output").reshape(len(ids), -1)
    wrong = np.flatnonzero(failing.off("output").reshape(got.shape).any(axis=1))[:FEW]
    limits = close(failing, "output", failing.answer("output")).reshape(got.shape)
    read = [np.flatnonzero((np.abs(table - got[i]) <= limits[i]).all(axis=1)) for i in wrong]
    if not read or any(len(rows) != 1 for rows in read):
        return
    rows = np.concatenate(read)
    distance = int(np.gcd.reduce(ids[wrong] - rows))
    others = {f"{things} are cut off at {rows[0]}": np.minimum(ids, rows[0])}
    if distance > rows.max() and distance not in (2**8, 2**16):  # `wrapped`
        others[f"{things} are taken modulo {distance}"] = ids % distance
    for words, other in others.items():
        yield giving(words, "output", table[other].reshape(failing.right("output").shape))


# --- which rows get a gradient ----------------------------------------------------------------------------------------


def without_gradient(failing: Failing) -> Iterator[Mistake]:
    """Rows of the table whose gradient stays 0."""
    right, off = failing.right(NAME), failing.off(NAME).any(axis=1)
    wrong, rows = np.flatnonzero(off), np.arange(len(right))
    if not wrong.size:
        return
    first, last = int(wrong[0]), len(right) - 1
    found = {f"the gradient of row {first} of the table stays 0": rows == first}
    if first == last:
        found = {"the gradient of the last row of the table stays 0": rows == last} | found
    elif first > 0:
        n = boundary(wrong, rows[right.any(axis=1) & ~off])
        found[f"gradients of rows of the table past the first {n} stay 0"] = rows >= n
    for words, missing in found.items():
        yield giving(words, NAME, np.where(missing[:, None], 0, right))


def counted_once(failing: Failing) -> Iterator[Mistake]:
    """Of ids that occur several times."""
    ids, bar, shape = ids_of(failing.case), bar_of(failing), failing.right(NAME).shape
    often = np.bincount(ids, minlength=shape[0])[:, None]
    for words, order in (("last", slice(None)), ("first", slice(None, None, -1))):
        found = np.zeros(shape)
        found[ids[order]] = bar[order]
        yield giving(f"an id that occurs several times counts once in the gradient, the {words} time", NAME, found)
    divided = failing.right(NAME) / np.maximum(often, 1)
    yield giving("the gradient of a row is divided by how often its id occurs", NAME, divided)


def row_sums(failing: Failing) -> dict[str, RowSum]:
    return table_sums(failing, ids_of(failing.case), bar_of(failing))


def table_sums(failing: Failing, ids: np.ndarray, bar: np.ndarray) -> dict[str, RowSum]:
    """The gradient of a table whose rows `ids` [n] are read, from the cotangents [n, width] of what is read."""
    rows, width = failing.case.inputs["table"].shape

    def total(terms: np.ndarray, of: np.ndarray) -> np.ndarray:
        found = np.zeros((rows, width))
        np.add.at(found, of, terms)
        return found

    return {
        NAME: RowSum(
            len(ids),
            lambda places: (ids[:, None] == places // width) * bar[:, places % width],
            lambda often: total(bar * often[:, None], ids),
            lambda part: total(bar[part], ids[part]),
            lambda: total(np.abs(bar), ids),
        )
    }


def added_up_in_16_bits(failing: Failing, ids: np.ndarray, bar: np.ndarray) -> Iterator[Mistake]:
    """One after the other: the first of every id, then the second. ids, bar: as in `table_sums`."""
    dtype = str(failing.got[NAME].dtype)
    if dtype not in HALF:
        return
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
    turns = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    total: Any = np.zeros(failing.right(NAME).shape)
    for turn in range(int(turns.max(initial=-1)) + 1):
        now = order[turns == turn]
        total[ids[now]] = to_dtype(total[ids[now]] + to_dtype(bar[now], dtype), dtype)
    yield giving(f"{NAME} is added up in {dtype}, row by row", NAME, total, strict=True)
