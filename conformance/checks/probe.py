"""What tests one rule: a way to draw cases, and the check that they go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.checks.catalogue import AGREEMENT
from conformance.checks.check import Check
from conformance.sampling.draws import CaseStrategy


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    operations: those that a subject must have. cases: draws what the check works on, a case or several. weight: its
    share of a run's cases, relative to other probes. of_memory: only the way in which arrays lie in memory makes its
    cases differ from others, so subjects whose arrays lie in one way alone are not asked.
    """

    rule: str
    title: str
    operations: tuple[str, ...]
    cases: CaseStrategy
    check: Check[Any, Any] = AGREEMENT
    weight: float = 1.0
    of_memory: bool = False


def agreement(rule: str, title: str, operation: str, cases: CaseStrategy, weight: float = 1.0) -> Probe:
    return Probe(rule, title, (operation,), cases, weight=weight)
