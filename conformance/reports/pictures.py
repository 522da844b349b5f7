"""A case's arrays as small tables of shaded cells; a large array shows the part that the worst element depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.cases.arguments import gradient_input, is_gradient
from conformance.cases.case import Case
from conformance.reports.content import Content
from reference_numpy import materialize

LARGEST = 64
"""Elements of a picture at most."""
MARKED = {"query": (2, None), "bias": (2, None), "mask": (2, None), "value": (None, 3)}
"""For attention's output: the axes of its index that give the row and column of an input for one element."""

Place = tuple[int | None, int | None]


@dataclass(frozen=True)
class Cell:
    """kind: "number", "nan", "infinite", "true" or "false". shade: from -1 to 1, the largest of the picture being 1."""

    text: str
    kind: str
    shade: float = 0.0
    marked: bool = False


@dataclass(frozen=True)
class Picture:
    """title: the name, with the indices of the visible part. shape: of the whole array."""

    title: str
    dtype: str
    shape: tuple[int, ...]
    tables: list[list[list[Cell]]]

    @property
    def has_marks(self) -> bool:
        return any(cell.marked for table in self.tables for row in table for cell in row)


def pictures(violation: Content) -> list[Picture]:
    """Return pictures of the inputs and the mask of the violation's case; none if it has no case."""
    from conformance.checks.catalogue import CHECKS
    from conformance.checks.encoding import decode

    replay = violation["replay"]
    if replay is None:
        return []
    case = CHECKS[replay["examined_by"]].case_of(decode(replay["material"]))
    return [] if case is None else case_pictures(case, violation["result"], violation["index"] or [])


def case_pictures(case: Case, result: str, index: list[int]) -> list[Picture]:
    arrays: dict[str, np.ndarray | None] = {**case.inputs, "mask": mask_of(case)}
    arrays["dropout_keep"] = case.options.get("dropout_keep")
    if is_gradient(result):
        arrays |= {f"cotangent of {name}": array for name, array in case.cotangents.items()}
    of_result = case.inputs.get(gradient_input(result) or result, case.inputs.get("query"))
    heads = of_result.shape[1] if of_result is not None and of_result.ndim == 4 else 1
    marks = MARKED if case.operation == "attention" and result == "output" and len(index) == 4 else {}
    found = []
    for name, array in arrays.items():
        row, column = (None if axis is None else index[axis] for axis in marks.get(name, (None, None)))
        one = None if array is None else picture(name, array, index, heads, (row, column))
        found += [] if one is None else [one]
    return found


def mask_of(case: Case) -> np.ndarray | None:
    """The array that the mask means; none where there is no mask, or none that means anything."""
    mask = case.options.get("mask")
    if mask is None or not case.operation.startswith("attention"):
        return None
    (B, H, Q, _), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
    try:
        return np.asarray(materialize(mask, Q, K, batch=B, heads=H))
    except (TypeError, ValueError):
        return None


def picture(name: str, array: np.ndarray, index: list[int], heads: int, place: Place) -> Picture | None:
    """The whole array, or the batch element and head of the worst element, if that is small enough.

    heads: the length of the result's axis of heads, of which several share a key head.
    """
    part: np.ndarray = array
    title = name
    if array.size > LARGEST and array.ndim == 4 and 0 not in array.shape:
        B, H = array.shape[:2]
        element, head, *_ = (*index, 0, 0)
        fixed = (min(element, B - 1), min(head * H // heads, H - 1))
        part, title = array[fixed], f"{name}{list(fixed)}"
    if part.size == 0 or part.size > LARGEST:
        return None
    flat = part.reshape(-1, *part.shape[-2:]) if part.ndim > 1 else part.reshape(1, 1, -1)
    largest, (row, column) = largest_magnitude(part), place if len(flat) == 1 else (None, None)
    tables = [
        [
            [cell(value, largest, i == row or j == column) for j, value in enumerate(values)]
            for i, values in enumerate(table)
        ]
        for table in flat
    ]
    return Picture(title, str(array.dtype), array.shape, tables)


def largest_magnitude(array: np.ndarray) -> float:
    if array.dtype == bool:
        return 1.0
    magnitudes = np.abs(array.astype(np.float64))
    finite = magnitudes[np.isfinite(magnitudes)]
    return float(finite.max()) if finite.size else 0.0


def cell(value: np.generic | float, largest: float, marked: bool = False) -> Cell:
    if isinstance(value, np.bool_):
        return Cell("1" if value else "\N{MIDDLE DOT}", "true" if value else "false", marked=marked)
    number = float(value)
    if not np.isfinite(number):
        return Cell(str(number), "nan" if np.isnan(number) else "infinite", marked=marked)
    return Cell(f"{number:.4g}", "number", round(number / largest, 3) if largest else 0.0, marked)
