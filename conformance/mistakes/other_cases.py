"""Small changes of a case or an array that several topics share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np

from conformance.cases.arguments import expected_dtype
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Prediction


def change_options(case: Case, **options: Any) -> Case | None:
    """The case with these options; None where it has them."""
    if all(case.options.get(name) == value for name, value in options.items()):
        return None
    return replace(case, options=case.options | options)


def answer_with(**options: Any) -> Callable[..., Case | None]:
    """Answer the case as if it had these options, and those that are values of the mistake's parameters."""
    return lambda call, **values: change_options(call.case, **options, **values)


def round_to(array: Any, dtype: str) -> np.ndarray:
    """The array rounded to a dtype, in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype).astype(float)


def with_own_bounds(call: Call, results: Results) -> Prediction:
    """Results rounded as an implementation rounds them, for mistakes that are no more than a rounding themselves.

    An element's bound is 0, but where the error of the arithmetic inside may have it rounded to the next number.
    """
    rounded, bounds = {}, {}
    for name, array in results.items():
        dtype = expected_dtype(name, call.case)
        inside = np.maximum(call.bounds[name] - 2.0 ** -PRECISION[dtype][0] * np.abs(call.right[name]), 0)
        rounded[name] = round_to(array, dtype)
        ends = [np.abs(round_to(end, dtype) - rounded[name]) for end in (array - inside, array + inside)]
        bounds[name] = np.maximum(*ends)
    return Prediction(rounded, bounds)
