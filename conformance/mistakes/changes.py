"""Changes that many mistakes are: another option or input, in every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name, is_gradient
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Prediction
from conformance.oracle.reference import by_definition, oracle


def set_options(**changed: Any) -> Callable[..., Case | None]:
    """Answer the call with these options; None where it has them already."""

    def change(call: Call) -> Case | None:
        options = call.case.options
        if all(options.get(name) == value for name, value in changed.items()):
            return None
        return replace(call.case, options=options | changed)

    return change


def drop_inputs(*names: str) -> Callable[..., Case | None]:
    """Answer the call without these inputs; None where it has none of them."""

    def change(call: Call) -> Case | None:
        if not any(name in call.case.inputs for name in names):
            return None
        inputs = {name: array for name, array in call.case.inputs.items() if name not in names}
        return replace(call.case, inputs=inputs)

    return change


def rearrange_inputs(move: Callable[..., Case | None]) -> Callable[..., Prediction | None]:
    """Answer the call with other inputs, whose elements are those of the call's inputs, or 0.

    move: gets the case with whole numbers for its inputs, a place for each element and 0 for the number 0, and returns
        it with these moved. So gradients come back to the places from which elements were taken.
    """

    def change(call: Call, **values: Any) -> Prediction | None:
        case, places, count = call.case, dict[str, np.ndarray](), 1
        for name, array in case.inputs.items():
            places[name] = np.arange(count, count + array.size).reshape(array.shape)
            count += array.size
        moved = move(replace(case, inputs=places), **values)
        if moved is None or (
            moved.inputs.keys() == places.keys()
            and all(np.array_equal(places[name], at) for name, at in moved.inputs.items())
        ):
            return None
        numbers = np.concatenate([[0.0], *(array.ravel().astype(float) for array in case.inputs.values())])
        dtypes = {name: array.dtype for name, array in case.inputs.items()}
        inputs = {n: numbers[at].astype(dtypes.get(n, np.dtype(case.dtype))) for n, at in moved.inputs.items()}
        other = replace(moved, inputs=inputs, memory={}, constants=())
        results, bounds = answer_in_float64(other), bound(other)
        found = [gather_gradients(case, moved.inputs, places, one, count) for one in (results, bounds)]
        twice = 1 if case.dtype != "float64" else 2  # once for the definition's own rounding
        return Prediction(found[0], {name: twice * array for name, array in found[1].items()})

    return change


def answer_in_float64(case: Case) -> Results:
    """Exact results, but for float64 those of the definition: they cost less, and many mistakes are tried."""
    exact = by_definition(case) if case.dtype == "float64" and case.options.get("empty_rows") != "any" else oracle(case)
    return {name: one.high for name, one in exact.items()}


def gather_gradients(
    case: Case, moved: dict[str, np.ndarray], places: dict[str, np.ndarray], found: Results, count: int
) -> Results:
    """Results as they are, and each gradient of an input from those of all places to which its elements were moved."""
    results = {name: array for name, array in found.items() if not is_gradient(name)}
    if not case.cotangents:
        return results
    sums = np.zeros(count)
    for name, at in moved.items():
        if gradient_name(name) in found:
            sums += np.bincount(at.ravel(), found[gradient_name(name)].ravel(), count)
    return results | {gradient_name(name): sums[at] for name, at in places.items()}
