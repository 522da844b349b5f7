"""The parts of an example: sentences, arrays with titles, tables, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from conformance.reports.pictures import cell, largest_magnitude
from conformance.side_by_side.sources import LABELS


class Shown(NamedTuple):
    """An array under a title. rows, columns: what they are called, where that is worth saying.

    marked: which elements are outlined, an array of booleans of the same shape.
    """

    title: str
    array: np.ndarray
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    marked: np.ndarray | None = None


class Table(NamedTuple):
    """Numbers that are no array. In the first column stands what a row is about. note: how to read it.

    folded: whether it is shown only when asked for.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = False


class Part(NamedTuple):
    """One call, or several on the same inputs.

    title: empty where it is the only part. says: what is to be seen, a sentence; names in backticks are code. verdict:
    how far the three are apart, in a sentence. folded: arrays that are given too, and are shown when asked for.
    heading: what stands above the steps.
    """

    title: str
    says: str
    call: str
    given: tuple[Shown, ...]
    steps: tuple[Shown, ...]
    tables: tuple[Table, ...]
    verdict: str
    folded: tuple[Shown, ...] = ()
    heading: str = "Steps and result, by the definition"


def of_bound(largest: float, errors: Mapping[str, float], what: str = "the result") -> str:
    """largest: the largest disagreement of two; errors: the largest error by package; all in units of the bound."""
    each = ", ".join(f"{LABELS[package]} {error:.2g}" for package, error in errors.items())
    apart = f"Two packages differ by at most {largest:.2g} bounds in {what}."
    return f"{apart} Largest error ratios: {each} (at most 1 conforms)."


def counted(name: str, count: int, first: int = 0) -> tuple[str, ...]:
    """Names of rows or columns: "query 0", "query 1" and so on."""
    return tuple(f"{name} {number}" for number in range(first, first + count))


def figure(shown: Shown) -> dict[str, Any]:
    """A table of cells for every matrix in the array; a vector is a matrix of one row. A zero has no sign here."""
    array = shown.array + 0.0 if shown.array.dtype.kind == "f" else shown.array
    shape = (-1, *array.shape[-2:]) if array.ndim > 1 else (1, 1, -1)
    largest = 0.0 if array.dtype.kind == "i" else largest_magnitude(array)  # ids have no size
    marked = np.zeros(array.shape, bool) if shown.marked is None else shown.marked
    tables = [
        [
            [cell(value, largest, bool(outlined)) for value, outlined in zip(row, outlines, strict=True)]
            for row, outlines in zip(matrix, marks, strict=True)
        ]
        for matrix, marks in zip(array.reshape(shape), marked.reshape(shape), strict=True)
    ]
    return {"tables": tables, "dtype": str(array.dtype), "shape": list(array.shape), "shown": shown}
