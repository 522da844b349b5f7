"""One call in all three packages: the named arrays inside their functions, the results, and the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.checks.comparison import compare
from conformance.oracle.reference import oracle
from conformance.side_by_side.sources import PACKAGES
from conformance.subjects.subject import IMPLEMENTATIONS
from study.capturing import Captured, watching
from study.examples.calls import Example, examples
from study.examples.running import disagreement, distance, eager


class Result(NamedTuple):
    """What one package's result is worth: its error in units of the bound, the largest of all elements."""

    package: str
    name: str
    ratio: float


class Worked(NamedTuple):
    """inputs and steps: by title, the definition's arrays. apart: by title, the largest difference of a port's."""

    example: Example
    inputs: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    apart: dict[str, dict[str, float]]
    disagreement: float  # the largest difference of two packages' results, in units of the bound
    results: tuple[Result, ...]


STANDS_FOR = {
    "forward": "deviations", "rms_norm_steps": "rms_norm", "standard_deviation_norm_steps": "standard_deviation_norm",
}  # fmt: skip
"""Helpers of the ports, by the function of the definition whose steps they take."""


def captured(package: str, case: Case, inside: Sequence[tuple[str, str]]) -> tuple[dict[str, np.ndarray], Captured]:
    """The package's results, and the arrays that its functions named on the way."""
    subject = IMPLEMENTATIONS[package]()
    functions = {function for function, _ in inside} | set(STANDS_FOR)
    framework = subject.framework

    def keep(value: object) -> np.ndarray | None:
        if isinstance(value, np.ndarray):  # constants that JAX leaves to NumPy, too
            return np.array(value)
        return np.array(framework.numpy(value)) if isinstance(value, framework.kind) else None

    options = dict(case.options)
    if "engine" in signature(getattr(subject.module, case.operation)).parameters:
        options["engine"] = "reference"  # the one that takes the definition's steps
    with eager(package), watching(package, functions, keep) as found:
        answers = subject(replace(case, options=options))
    return answers, {(STANDS_FOR.get(function, function), name): array for (function, name), array in found.items()}


@cache
def worked(page: str) -> Worked | None:
    """The example of a page, computed by all three; None where there is none."""
    example = examples().get(page)
    if example is None:
        return None
    case, inside = example.case, example.inside
    wanted = list(dict.fromkeys((STANDS_FOR.get(function, function), name) for function, name in inside))
    runs = {package: captured(package, case, inside) for package in PACKAGES}
    truth, bounds = oracle(case), bound(case)
    results = tuple(
        Result(package, name, compare(name, answers[name], exact, bounds[name], str(answers[name].dtype)).ratio)
        for package, (answers, _) in runs.items()
        for name, exact in truth.items()
    )
    arrays = {
        package: {title(case, place, wanted): inside[place] for place in wanted if place in inside} | answers
        for package, (answers, inside) in runs.items()
    }
    steps = arrays[PACKAGES[0]]
    counted = None if example.counted is None else runs[PACKAGES[0]][1][example.counted]
    apart = {
        name: {
            package: distance(compared(array, counted), compared(arrays[package].get(name), counted))
            for package in PACKAGES[1:]
        }
        for name, array in steps.items()
    }
    largest = max(
        disagreement({package: answers[name] for package, (answers, _) in runs.items()}, bounds[name]) for name in truth
    )
    return Worked(example, dict(case.inputs), steps, apart, largest, results)


def compared(array: np.ndarray | None, counted: np.ndarray | None) -> Any:
    """The rows that count, of an array that has these rows; any other as it is."""
    if array is None or counted is None or array.shape[: counted.ndim] != counted.shape:
        return array
    return array[counted]


def title(case: Case, place: tuple[str, str], places: Sequence[tuple[str, str]] = ()) -> str:
    """The array's name; where that is an argument's or another place's too, or a letter, also the function."""
    function, name = place
    unclear = name in case.inputs or len(name) == 1 or sum(name == other for _, other in places) > 1
    return f"{name} in {function}" if unclear and function != case.operation else name
