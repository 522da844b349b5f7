"""Cases of a run that are kept, right and wrong ones alike, so that a diagnosis can ask them once more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.cases.case import Case
from conformance.cases.expectations import Planted
from conformance.checks.catalogue import (
    AGREEMENT,
    DESCRIPTION,
    EMPTY_ROWS,
    MEMORY,
    PLANTED,
    SHAPES,
    SPOILED_ROWS,
    TOWERING,
    TWIN,
)
from conformance.checks.check import Check
from conformance.checks.levels import CORE
from conformance.subjects.subject import Answers, Subject

MOST_NUMBERS = 2**18
"""Numbers of one case at most; a mistake is told apart on small cases."""
FAILING, PASSING = 3, 2
"""Cases that are kept for each probe: the smallest that fail and that pass."""
EXACT = "float64"
"""The dtype whose exact results are slow to compute: one failing and one passing case for each probe."""
SINGLE_CALL_CHECKS = (AGREEMENT, EMPTY_ROWS, MEMORY, DESCRIPTION, SHAPES, PLANTED, TWIN, TOWERING, SPOILED_ROWS)
"""Checks that compare the answers to one call with exact results."""


@dataclass(frozen=True)
class KeptCase:
    """A case as a check asked it.

    rule, probe, title, least: of the probe that drew it, as in `Violation`. failed: whether the subject was wrong.
    answers: what the subject returned then, where the check compares one call with exact results.
    """

    rule: str
    probe: str
    title: str
    check: Check[Any, Any]
    example: Any
    failed: bool
    least: str = CORE
    answers: Answers | None = None

    @property
    def size(self) -> int:
        return count_numbers(self.check.case_of(self.example))


def single_case(check: Check[Any, Any], example: Any) -> Case | None:
    """The case of the one call that a check compares with exact results; None for a check of other things."""
    if check not in SINGLE_CALL_CHECKS:
        return None
    return example.planted if isinstance(example, Planted) else example[0] if isinstance(example, tuple) else example


def find_answers(subject: Subject, check: Check[Any, Any], example: Any) -> Answers | None:
    """The subject's answers to the one call of the latest check, where they are few enough to be kept."""
    case, latest = single_case(check, example), subject.latest
    if case is None or latest is None or latest[0] is not case or count_numbers(case) > MOST_NUMBERS:
        return None
    return latest[1]


def count_numbers(case: Case) -> int:
    """Numbers of the inputs, and pairs of queries and keys: about what a prediction computes."""
    count = sum(array.size for array in (*case.inputs.values(), *case.cotangents.values()))
    query, key = case.inputs.get("query"), case.inputs.get("key")
    if query is not None and key is not None and query.ndim == 4:
        count += query[..., 0].size * key.shape[2]
    return count


@dataclass
class KeptCases:
    """Of one subject, by probe, whether they failed, and whether they are in float64."""

    cases: dict[tuple[str, bool, bool], list[KeptCase]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kept: KeptCase) -> None:
        case = kept.check.case_of(kept.example)
        if case is None or kept.size > MOST_NUMBERS:
            return
        exact = case.dtype == EXACT
        several = self.cases[kept.probe, kept.failed, exact]
        several.append(kept)
        several.sort(key=lambda one: one.size)
        del several[1 if exact else FAILING if kept.failed else PASSING :]

    def include(self, other: KeptCases) -> None:
        for kept in other:
            self.add(kept)

    def __iter__(self) -> Iterator[KeptCase]:
        return (kept for several in self.cases.values() for kept in several)
