"""What a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from conformance.cases.case import Case
from conformance.checks.comparison import Finding, breaks, raise_level
from conformance.checks.levels import CORE, ROBUST, higher
from conformance.subjects.subject import Subject

Findings = list[Finding]
Example = TypeVar("Example")
Shared = TypeVar("Shared")


def return_case(example: Case) -> Case:
    return example


def first(examples: tuple[Any, ...]) -> Case:
    """The case that the subject is asked, of two or more."""
    return examples[0]


def nothing(example: Any) -> None:
    """Nothing is shared."""


@dataclass(frozen=True)
class Check(Generic[Example, Shared]):
    """One way to check a subject.

    name: in files. example: what a probe draws, a case or several. prepare: computes from it what all subjects share.
    run: calls a subject and compares its answers. case_of: the example's case. tells_size: whether a failure may say
    that the subject does not take the case's size. level: the lowest one that its violations have.
    """

    name: str
    prepare: Callable[[Example], Shared]
    run: Callable[[Subject, Example, Shared], Findings]
    case_of: Callable[[Any], Case] = return_case
    tells_size: bool = True
    level: str = CORE

    def raise_levels(self, findings: Findings, example: Example) -> Findings:
        """The findings of this check, with the level at least that the check and its case have."""
        return (
            raise_level(findings, higher(self.level, case_level(self.case_of(example))))
            if breaks(findings)
            else findings
        )


def case_level(case: Case | None) -> str:
    """ROBUST for a case with lengths of 0, or with NaN or infinity that can reach results."""
    if case is None:
        return CORE
    beyond = case.special or any(
        0 in array.shape or has_special_values(name, array) for name, array in case.inputs.items()
    )
    return ROBUST if beyond else CORE


def has_special_values(name: str, array: np.ndarray) -> bool:
    """Whether it holds NaN or infinity, but for -inf where that stands for what takes no part."""
    if array.dtype.kind in "biu":
        return False
    wide = array.astype(float)
    takes_no_part = name in ("bias", "sinks") or name.startswith("logsumexps")
    return not bool((np.isfinite(wide) | (np.isneginf(wide) & takes_no_part)).all())
