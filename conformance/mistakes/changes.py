"""Changes of a case or an array that several topics share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import FORMATS, UNIT_ROUNDOFF, Approx
from conformance.cases.arguments import expected_dtype, gradient_name, is_gradient, replace_kernel_arguments
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Prediction
from conformance.oracle.reference import evaluate_definition, oracle
from specification.dtypes import FLOATING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def change_options(case: Case, **options: object) -> Case | None:
    """The case with these options; None where it has them."""
    given = {name: case.options.get(name) for name in options}
    changes = any(isinstance(one, np.ndarray) or one != options[name] for name, one in given.items())
    return replace(case, options=case.options | options) if changes else None


def answer_with(**options: object) -> Callable[..., Case | None]:
    """Answer the case as if it had these options, and those that are values of the mistake's parameters."""
    return lambda call, **values: change_options(call.case, **options, **values)


def rearrange_inputs(move: Callable[..., Case | None]) -> Callable[..., Prediction | None]:
    """Answer the call with other inputs, whose elements are those of the call's inputs, or 0.

    move: gets the case with whole numbers for its inputs, a place for each element and 0 for the number 0, and returns
        it with these moved. So gradients come back to the places from which elements were taken.
    """

    def change(call: Call, **values: object) -> Prediction | None:
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
    by_definition = case.dtype == "float64" and case.options.get("empty_rows") != "any"
    exact = evaluate_definition(replace_kernel_arguments(case)) if by_definition else oracle(case)
    return {name: one.high for name, one in exact.items()}


def count_rows(call: Call, kept: np.ndarray) -> Results | None:
    """The right results, with the gradients of an output of which only the kept elements have a cotangent."""
    if kept.all():
        return None
    case = call.case
    if not case.cotangents:
        return call.right
    bar = case.cotangents["output"]
    return answer_in_float64(
        replace(case, cotangents=case.cotangents | {"output": np.where(kept, bar, 0).astype(bar.dtype)})
    )


def lose_results(call: Call, kept: np.ndarray) -> Results | None:
    """Elements of the output that are not kept are 0, and pass no gradients on."""
    found = count_rows(call, kept)
    return None if found is None else found | {"output": np.where(kept, found["output"], 0)}


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
    floating = {name: at for name, at in places.items() if str(case.inputs[name].dtype) in FLOATING}
    return results | {gradient_name(name): sums[at] for name, at in floating.items()}


def round_to(array: ArrayLike, dtype: str) -> np.ndarray:
    """The array rounded to a dtype, in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype).astype(float)


def compute_in_float32(call: Call) -> Prediction | None:
    """float64 inputs are rounded to float32, and so is every step: results are float32 numbers near the exact ones."""
    case = call.case
    if case.dtype != "float64":
        return None
    narrow = {name: round_to(a, "float32") if a.dtype == float else a for name, a in case.inputs.items()}
    overflows = any((np.isinf(narrow[name]) & np.isfinite(array)).any() for name, array in case.inputs.items())
    inside = replace(case, inputs=narrow, special=case.special or overflows)  # an overflow has no result in balls
    right, bounds = answer_in_float64(inside), bound(replace(case, dtype="float32"))
    results = {name: round_to(array, "float32") for name, array in right.items()}

    def fit(name: str, got: np.ndarray) -> np.ndarray:
        rounded = round_to(got, "float32")
        return np.where(np.abs(rounded - right[name]) <= bounds[name], rounded, results[name])

    return Prediction(results, {name: np.zeros_like(array) for name, array in results.items()}, fit)


UNITS = UNIT_ROUNDOFF | {name: form.unit for name, form in FORMATS.items()}


def round_number(array: np.ndarray, form: str, cut: bool = False) -> np.ndarray:
    """Round to the nearest number of a format; or cut off, towards zero, in a format with the range of float32."""
    if not cut and form != "tf32":
        return round_to(array, form)
    mantissa, exponent = np.frexp(array)
    bits = -int(np.log2(UNITS[form]))
    return np.asarray(np.ldexp((np.trunc if cut else np.rint)(np.ldexp(mantissa, bits)), exponent - bits))


def round_stage(x: Approx, form: str, cut: bool = False) -> Approx:
    """The rounded value; its error is how far from it any value within the error of x is rounded."""
    value = round_number(x.value, form, cut)
    ends = [np.abs(round_number(end, form, cut) - value) for end in (x.value - x.error, x.value + x.error)]
    return Approx(value, np.where(np.isfinite(value), np.maximum(*ends), 0))


def add_in_order(terms: Approx, form: str, axis: int) -> Approx:
    """Add up one term after the other, each sum rounded. A sum grows with its terms, so its ends are sums of ends."""

    def add(array: np.ndarray) -> np.ndarray:
        total = np.zeros_like(array.sum(axis))
        for term in np.moveaxis(array, axis, 0):
            total = round_number(total + term, form)
        return np.expand_dims(total, axis)

    value, low, high = (add(array) for array in (terms.value, terms.value - terms.error, terms.value + terms.error))
    return Approx(value, np.maximum(high - value, value - low))


def add_rounding_bounds(call: Call, results: Results) -> Prediction:
    """Results rounded as an implementation rounds them, for mistakes that are no more than a rounding themselves.

    An element's bound is 0, but where the error of the arithmetic inside may have it rounded to the next number.
    """
    rounded, bounds = {}, {}
    for name, array in results.items():
        dtype = expected_dtype(name, call.case)
        inside = np.maximum(call.bounds[name] - 2.0 ** -PRECISION[dtype][0] * np.abs(call.right[name]), 0)
        rounded[name], bounds[name] = round_stage(Approx(array, inside), dtype)
    return Prediction(rounded, bounds)
