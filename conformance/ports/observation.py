"""What a port returned for a case, compared with the definition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.bounds.arithmetic import UNIT_ROUNDOFF
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding, NotANumber, NotDeterministic
from conformance.oracle.reference import Exact
from conformance.ports.cases import ModelCase
from conformance.ports.subject import Answer
from conformance.subjects.wrong_answers import Detail, DtypeOrShape

TWICE = 2.0
"""Bounds of a prediction: one for the port, one because the noise of a computation with a mistake is another."""
MARGIN = 2 * TWICE
"""Bounds by which a prediction must be off the right result: no answer then agrees with both."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A case and the answer to it."""

    case: ModelCase
    answer: Answer

    @property
    def detail(self) -> Detail | None:
        """What is wrong with the answer, where that is no number."""
        if self.answer.result is None:
            return self.answer.detail
        got, due = self.answer.result, self.case.exact.shape
        if got.shape != due or str(got.dtype) != self.case.dtype:
            return DtypeOrShape(str(got.dtype), got.shape, (self.case.dtype,), due)
        finite = np.isfinite(self.case.select(self.case.exact))
        if np.isnan(self.case.select(got.astype(float))[finite]).any():
            return NotANumber()
        return None

    @cached_property
    def finding(self) -> Finding:
        """The worst element; or the detail of what is wrong."""
        detail = self.detail
        if detail is not None:
            return Finding("result", np.inf, detail=detail, raised_at=self.answer.raised_at)
        exact, bound = self.case.exact_and_bound
        got = np.asarray(self.answer.result).astype(float)
        if self.case.counted is not None:  # elsewhere anything will do
            got = np.where(self.case.counted[..., None], got, exact)
        return compare("result", got, Exact(exact, 0 * exact), bound, "float64")

    @property
    def is_steady(self) -> bool:
        """Whether nothing speaks for another answer to the same call."""
        return not isinstance(self.answer.detail, NotDeterministic)

    @property
    def failed(self) -> bool:
        return not self.finding.ratio <= 1

    @property
    def has_numbers(self) -> bool:
        return self.detail is None

    def distance(self, predicted: np.ndarray) -> float:
        """Return how far the answer is from a prediction, in its bounds; infinity for another shape."""
        errors = self.errors(np.asarray(predicted))
        return np.inf if errors is None else largest_ratio(errors, np.ones_like(errors))

    def errors(self, predicted: np.ndarray) -> np.ndarray | None:
        """Return what the answer has more than a prediction, in its bounds; None for another shape."""
        if predicted.shape != self.case.exact.shape or not self.has_numbers:
            return None
        got = self.case.select(np.asarray(self.answer.result).astype(float))
        difference, limits = got - self.case.select(predicted), self.limits(predicted)
        with np.errstate(all="ignore"):
            return np.asarray(np.where(difference == 0, 0, difference / limits)).ravel()

    def limits(self, predicted: np.ndarray) -> np.ndarray:
        """The bounds of the right result, grown as the prediction's numbers are larger than the right ones."""
        right, bound = self.case.exact_and_bound
        with np.errstate(all="ignore"):
            growth = largest(predicted) / max(largest(right), 1e-300)
        limits = bound * max(1.0, growth) + UNIT_ROUNDOFF[self.case.dtype] * np.abs(predicted)
        return self.case.select(limits)

    def tells_apart(self, predicted: np.ndarray) -> bool:
        """Whether a prediction is so far from the right result that what agrees with it is wrong."""
        right, bound = self.case.exact_and_bound
        if predicted.shape != right.shape:
            return True
        difference = self.case.select(predicted) - self.case.select(right)
        return largest_ratio(difference, self.case.select(bound)) > MARGIN


def largest(array: np.ndarray) -> float:
    """The largest size of a number that is finite; 0 where none is."""
    return float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))


def largest_ratio(difference: np.ndarray, limits: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        ratios = np.where(difference == 0, 0, np.abs(difference) / limits)
    if ratios.size == 0:
        return 0.0
    return np.inf if np.isnan(ratios).any() else float(ratios.max())
