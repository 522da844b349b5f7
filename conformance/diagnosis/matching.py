"""Trying known mistakes on one case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.cases import Case, expected_dtype
from conformance.expectations import Exact
from conformance.oracle import oracle
from conformance.subjects import Answers
from conformance.verdict import PRECISION, Finding, compare

MOST = 3
"""Mistakes that are named for one violation."""

Bounds = dict[str, np.ndarray]


class Mistake(NamedTuple):
    """What is wrong, in words, and its exact answers with their bounds; None where the case has no place for it.

    of_any_size: the bounds tell something for scores of 1e30, too.
    """

    name: str
    answers: Callable[[Case], tuple[dict[str, Exact], Bounds] | None]
    of_any_size: bool = False


def exactly(array: np.ndarray) -> Exact:
    """What float64 holds whole."""
    return Exact(array, np.zeros_like(array))


def instead(name: str, change: Callable[[Case], Case | None]) -> Mistake:
    """The subject answers another case than it was asked."""

    def answers(case: Case) -> tuple[dict[str, Exact], Bounds] | None:
        other = change(case)
        return None if other is None else (oracle(other), bound(other))

    return Mistake(name, answers)


def computed(name: str, output: Callable[[Case], Any]) -> Mistake:
    """The subject's output is what a formula gives in float64.

    It may be off as far as the case's worst element, and by its own rounding: what is wrong may be larger than what is
    right, and in 16 bits the bound is little more than the rounding.
    """

    def answers(case: Case) -> tuple[dict[str, Exact], Bounds] | None:
        array = output(case)
        if array is None:
            return None
        worst = largest(bound(case)["output"])
        rounding = 2.0 ** -PRECISION[case.dtype][0] * np.abs(array)
        return {"output": exactly(array)}, {"output": worst + rounding}

    return Mistake(name, answers)


def largest(bounds: np.ndarray) -> Any:
    """Of the finite ones."""
    return np.max(np.where(np.isfinite(bounds), bounds, 0), initial=0)


def matching(
    case: Case, got: Answers, truth: dict[str, Exact], finding: Finding, mistakes: list[Mistake]
) -> Iterator[str]:
    """Names of the mistakes whose answers are those of the subject, in the result that is wrong and in the output."""
    for mistake in mistakes:
        with np.errstate(all="ignore"):
            answers = mistake.answers(case)
        if answers is None or finding.name not in answers[0]:
            continue
        if same(case, got, *answers) and told_from(truth, *answers, finding.name):
            yield mistake.name


def same(case: Case, got: Answers, answers: dict[str, Exact], bounds: Bounds) -> bool:
    return all(
        compare(name, got.get(name), exact, bounds[name], expected_dtype(name, case)).ratio <= 1
        for name, exact in answers.items()
        if name in got
    )


def told_from(truth: dict[str, Exact], answers: dict[str, Exact], bounds: Bounds, name: str) -> bool:
    """Whether a mistake's answer lies beyond its bound from the right one; a nearer one explains nothing."""
    if name not in truth:
        return True
    right, wrong = truth[name].high, answers[name].high
    numbers = np.isfinite(right) & np.isfinite(wrong)
    with np.errstate(all="ignore"):
        apart = np.where(numbers, np.abs(right - wrong) > bounds[name], ~np.equal(right, wrong))
    return bool(np.any(apart & ~(np.isnan(right) & np.isnan(wrong))))


def multiples(case: Case, got: Answers, truth: dict[str, Exact], finding: Finding) -> Iterator[str]:
    """The right answer times a number, the same everywhere, that is no matter of the dtype's last digits."""
    if finding.name not in truth or finding.name not in got:
        return
    expected, wide = truth[finding.name].high, got[finding.name].astype(float)
    if not (np.isfinite(expected).all() and np.isfinite(wide).all()) or np.count_nonzero(expected) < 2:
        return
    factor = float(np.sum(wide * expected) / np.sum(expected**2))
    if abs(factor - 1) < 8 * 2.0 ** -PRECISION[expected_dtype(finding.name, case)][0]:
        return
    scaled = exactly(expected * factor)
    bounds = bound(case)[finding.name] * max(1.0, abs(factor))
    if compare(finding.name, got[finding.name], scaled, bounds, expected_dtype(finding.name, case)).ratio <= 1:
        yield f"{finding.name} is {f'{factor:.6g} times what it must be' if factor else '0 everywhere'}"
