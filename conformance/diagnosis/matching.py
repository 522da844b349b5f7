"""Trying known mistakes on one case."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import dtype_beside, expected_dtype
from conformance.cases.case import Case
from conformance.cases.expectations import Exact
from conformance.checks.comparison import PRECISION, Finding, compare, judge, no_others
from conformance.diagnosis.steps import Forward, Parts, Steps, forward, of_row, pulled_back, steps_of
from conformance.oracle.reference import oracle
from conformance.subjects.subject import Answers

MOST = 3
"""Mistakes that are named for one violation."""

SEVERAL = 3
"""Elements that are rounded otherwise than they should be, for this to be no accident."""

PROJECTIONS = re.compile(r"\(((?:(?:query|key|value|output)(?:, )?)+)\)")
"""In which projections a mistake is made."""
MEASURED = re.compile(
    r"\b(the scale is|whose first|whose last|from the first|from the last) [-+.e\d]+"
    r"(?= times| keys are hidden| query heads of each group)"
    r"| \(the (?:first|last) one twice\)| " + PROJECTIONS.pattern
)
"""What is measured on a case, and may come out differently on another: a number, or which of several it is."""

Arrays = dict[str, np.ndarray]
Bounds = dict[str, np.ndarray]


def kind(name: str) -> str:
    """The name without what is measured."""
    return MEASURED.sub(lambda found: found[1] or "", name)


@dataclass(frozen=True)
class Failing:
    """A case with a subject's answers to it, what they should be, and by how much they may be off."""

    case: Case
    got: Answers
    truth: dict[str, Exact]
    bounds: Bounds

    @cached_property
    def findings(self) -> list[Finding]:
        return judge(self.case, self.got, self.truth, self.bounds, no_others)

    @cached_property
    def wrong(self) -> list[str]:
        """Names of the results that are wrong."""
        return [finding.name for finding in self.findings if finding.ratio > 1]

    @cached_property
    def steps(self) -> Steps:
        return steps_of(self.case)

    @cached_property
    def forward(self) -> Forward:
        return forward(self.steps)

    @property
    def bar(self) -> np.ndarray:
        return self.case.cotangents["output"].astype(float)

    @cached_property
    def parts(self) -> Parts:
        return pulled_back(self.steps, self.bar, self.forward.weights)

    def right(self, name: str) -> np.ndarray:
        return self.truth[name].high

    def answer(self, name: str) -> np.ndarray:
        return self.got[name].astype(float)

    def off(self, name: str) -> np.ndarray:
        """Which elements are beyond their bounds."""
        got, right = self.answer(name), self.right(name)
        with np.errstate(all="ignore"):
            beyond = ~(np.abs(got - right) <= self.bounds[name])
        return beyond & ~((got == right) | (np.isnan(got) & np.isnan(right)))


class Mistake(NamedTuple):
    """What is wrong, in words, and results that it gives, with their bounds; None where the case has no place for it.

    of_digits: rounded to the dtype it gives the subject's answers bit for bit, which tells it from what is right even
    where both lie within the bounds. likely: whether a first look allows it, where all of it takes long.
    """

    name: str
    answers: Callable[[Failing], tuple[Arrays, Bounds] | None]
    of_digits: bool = False
    likely: Callable[[Failing], bool] | None = None


def instead(name: str, change: Callable[[Case], Case | None]) -> Mistake:
    """The subject answers another case than it was asked; one that the definition refuses explains nothing."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        other = change(failing.case)
        if other is None:
            return None
        try:
            truth = oracle(other)
        except ValueError:
            return None
        return {name: exact.high for name, exact in truth.items()}, bound(other)

    return Mistake(name, answers)


BACKWARD_ONLY = "in the backward pass only: "


def only_backwards(failing: Failing, name: str, output: np.ndarray) -> str:
    """The name of a mistake in gradients: of the backward pass alone where this output would be seen to be wrong."""
    seen = told_from(failing.right("output"), output, 2 * failing.bounds["output"])
    return f"{BACKWARD_ONLY}{name}" if seen else name


def backwards(mistake: Mistake) -> Mistake:
    """The same mistake in the backward pass alone."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        found = mistake.answers(failing)
        if found is None or "output" not in found[0] or len(found[0]) == 1:
            return None
        if only_backwards(failing, mistake.name, found[0]["output"]) == mistake.name:
            return None
        return {name: array for name, array in found[0].items() if name != "output"}, found[1]

    return Mistake(f"{BACKWARD_ONLY}{mistake.name}", answers)


def computed(name: str, output: Callable[[Case], Any]) -> Mistake:
    """The subject's output is what a formula gives in float64."""
    return resulting(name, lambda failing: {"output": output(failing.case)})


Limits = Callable[["Failing", str, np.ndarray], np.ndarray]
"""By how much the elements of a result may be off from a mistake's."""


def resulting(
    name: str, results: Callable[[Failing], dict[str, Any] | None], strict: bool = False, limits: Limits | None = None
) -> Mistake:
    """Some of the subject's results are what formulas give in float64. strict: each within its own element's bound."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        found = results(failing)
        if found is None or any(array is None for array in found.values()):
            return None
        return found, failing.bounds if strict else {n: (limits or loose)(failing, n, a) for n, a in found.items()}

    return Mistake(name, answers, of_digits=strict)


def giving(name: str, of_result: str, array: np.ndarray, strict: bool = False, limits: Limits | None = None) -> Mistake:
    """One of the results is this array."""
    return resulting(name, lambda failing: {of_result: array}, strict, limits)


def loose(failing: Failing, name: str, array: np.ndarray) -> np.ndarray:
    """Twice the bound of the case's worst element, and twice the rounding of its own.

    What is wrong may be larger than what is right, and in 16 bits the bound is little more than the rounding.
    """
    return limits_from(failing, name, array, largest(failing.bounds[name]))


def close(failing: Failing, name: str, array: np.ndarray, left: float = 0.25) -> np.ndarray:
    """The same with each element's own bound, and no more than a rounding and a part of the subject's largest error.

    For mistakes that do no more to one element than to others like it. What explains an error leaves little of it.
    """
    return np.minimum(limits_from(failing, name, array, failing.bounds[name]), explained(failing, name, array, left))


def closest(failing: Failing, name: str, array: np.ndarray) -> np.ndarray:
    """The same for mistakes of which many give about the same answer."""
    return close(failing, name, array, 1 / 32)


def explained(failing: Failing, name: str, array: np.ndarray, left: float) -> np.ndarray:
    """Two roundings of a mistake's answer, and some of what is explained.

    left: the part that may be left of the subject's largest error, or of its largest number where that is less.
    """
    got = failing.answer(name)
    error, size = (np.max(np.abs(a), initial=0, where=np.isfinite(a)) for a in (got - failing.right(name), got))
    return left * min(error, size) + 2 * rounding_of(failing, name, array)


def rounding_of(failing: Failing, name: str, array: np.ndarray) -> np.ndarray:
    return np.asarray(2.0 ** -PRECISION[expected_dtype(name, failing.case)][0] * np.abs(array))


def limits_from(failing: Failing, name: str, array: np.ndarray, bounds: Any) -> np.ndarray:
    right = failing.right(name)
    largest_right, largest_wrong = (np.max(np.abs(a), initial=0, where=np.isfinite(a)) for a in (right, array))
    growth = max(1.0, largest_wrong / largest_right) if largest_right else 1.0
    return np.asarray(2 * (bounds * growth + rounding_of(failing, name, array)))


def worst_row(failing: Failing) -> tuple[int, int, int]:
    """Batch element, head and query of the element that is farthest off."""
    finding = next(finding for finding in failing.findings if finding.name == "output")
    return finding.index[0], finding.index[1], finding.index[2]


def in_worst_row(failing: Failing, steps: Steps) -> bool:
    """Whether these steps give about the row that is farthest off."""
    row, got = worst_row(failing), failing.answer("output")
    found = forward(of_row(steps, row)).output[0, 0, 0]
    limit = 2 * np.nanmax(loose(failing, "output", got), initial=0)
    return bool(np.all((np.abs(found - got[row]) <= limit) | ~np.isfinite(found + got[row])))


def largest(bounds: np.ndarray) -> Any:
    """Of the finite ones."""
    return np.max(np.where(np.isfinite(bounds), bounds, 0), initial=0)


def matching(
    failing: Failing,
    name: str,
    mistakes: Iterable[Mistake],
    until: float = np.inf,
    kinds: Collection[str] | None = None,
) -> Iterator[str]:
    """Names of the mistakes that give the subject's answers, and not the right ones in the result of this name.

    until: when to stop trying, by `time.thread_time()`. kinds: of those that are tried; None for all.
    """
    for mistake in mistakes:
        if time.thread_time() > until:
            return
        if kinds is not None and kind(mistake.name) not in kinds:
            continue
        with np.errstate(all="ignore"):
            if mistake.likely is not None and not mistake.likely(failing):
                continue
            answers = mistake.answers(failing)
        if answers is None or name not in answers[0]:
            continue
        apart = told_from(failing.truth[name].high, answers[0][name], answers[1][name])
        if not apart and not (mistake.of_digits and bit_for_bit(failing, name, answers[0][name])):
            continue
        if same(failing, name, *answers):
            yield mistake.name


def same(failing: Failing, name: str, arrays: Arrays, bounds: Bounds) -> bool:
    """Where the output is wrong it decides alone; else every result must be the mistake's. Only 0 explains zeros."""
    got = failing.got[name]
    if not np.any(got) and np.any(arrays[name].astype(got.dtype)):
        return False
    if not nearer(failing, name, arrays[name]):
        return False
    return all(
        agrees(failing, n, arrays[n], bounds[n]) for n in arrays if n == name or (name != "output" and n in failing.got)
    )


def nearer(failing: Failing, name: str, array: np.ndarray) -> bool:
    """Whether elements that are wrong are clearly nearer to a mistake's than to the right ones.

    A mistake that leaves them as they are explains nothing. With few digits the right answer, another mistake's and
    the subject's may lie within some roundings of one another.
    """
    got, right = failing.answer(name), failing.right(name)
    if array.shape != got.shape:
        return False
    where = failing.off(name) & np.isfinite(got) & np.isfinite(right) & np.isfinite(array)
    return not where.any() or bool(np.sum(np.abs(got - array)[where]) < 0.9 * np.sum(np.abs(got - right)[where]))


def agrees(failing: Failing, name: str, array: np.ndarray, bounds: np.ndarray) -> bool:
    exact = Exact(array, np.zeros_like(array))
    bounds = np.broadcast_to(bounds, array.shape)
    got = failing.got.get(name)
    return compare(name, got, exact, bounds, dtype_beside(got, name, failing.case)).ratio <= 1


def bit_for_bit(failing: Failing, name: str, wrong: np.ndarray) -> bool:
    """Whether the answers are the mistake's where these differ from the right ones, once both are rounded."""
    got = failing.got[name]
    if got.dtype.itemsize > 2:
        return False
    right, wrong = (array.astype(got.dtype) for array in (failing.right(name), wrong))
    differ = right != wrong
    count, others = np.count_nonzero(differ & (got == wrong)), np.count_nonzero(differ & (got != wrong))
    return bool(count >= SEVERAL and count >= 9 * others)


def told_from(right: np.ndarray, wrong: np.ndarray, bounds: Any) -> bool:
    """Whether a mistake's answer lies beyond its bound from the right one; a nearer one explains nothing."""
    if right.shape != wrong.shape:
        return False
    numbers = np.isfinite(right) & np.isfinite(wrong)
    with np.errstate(all="ignore"):
        apart = np.where(numbers, np.abs(right - wrong) > bounds, ~np.equal(right, wrong))
    return bool(np.any(apart & ~(np.isnan(right) & np.isnan(wrong))))
