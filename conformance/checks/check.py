"""What a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from conformance.cases.case import Case
from conformance.checks.comparison import Finding, breaks, of_level
from conformance.checks.levels import CORE, ROBUST, higher
from conformance.subjects.subject import Subject

Findings = list[Finding]
Material = TypeVar("Material")
Shared = TypeVar("Shared")


def itself(material: Case) -> Case:
    return material


def first(materials: tuple[Any, ...]) -> Case:
    """The case that the subject is asked, of two or more."""
    return materials[0]


def nothing(material: Any) -> None:
    """Nothing is shared."""


@dataclass(frozen=True)
class Check(Generic[Material, Shared]):
    """One way to check a subject.

    name: in files. material: a case, or what a case is made from. prepare: computes from it what all subjects share.
    run: calls a subject and compares its answers. case_of: the material's case. tells_size: whether a failure may say
    that the subject does not take the case's size. level: the lowest one that its violations have.
    """

    name: str
    prepare: Callable[[Material], Shared]
    run: Callable[[Subject, Material, Shared], Findings]
    case_of: Callable[[Any], Case] = itself
    tells_size: bool = True
    level: str = CORE

    def levelled(self, findings: Findings, material: Material) -> Findings:
        """The findings of this check, with the level at least that the check and its case have."""
        return (
            of_level(findings, higher(self.level, case_level(self.case_of(material)))) if breaks(findings) else findings
        )


def case_level(case: Case | None) -> str:
    """ROBUST for a case with lengths of 0, or with NaN or infinity that can reach results."""
    if case is None:
        return CORE
    beyond = case.special or any(0 in array.shape or beyond_numbers(name, array) for name, array in case.inputs.items())
    return ROBUST if beyond else CORE


def beyond_numbers(name: str, array: np.ndarray) -> bool:
    """Whether it holds NaN or infinity, but for -inf where that stands for what takes no part."""
    if array.dtype.kind in "biu":
        return False
    wide = array.astype(float)
    takes_no_part = name in ("bias", "sinks") or name.startswith("logsumexps")
    return not bool((np.isfinite(wide) | (np.isneginf(wide) & takes_no_part)).all())
