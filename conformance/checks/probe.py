"""What tests one rule: a way to draw cases, and the check that they go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.checks.catalogue import AGREEMENT
from conformance.checks.check import Check
from conformance.checks.levels import CORE
from conformance.sampling.draws import CaseStrategy


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    name: with the rule it makes the `id`, from which its cases are seeded: it never changes. operations: those that a
    subject must have. cases: draws what the check works on, a case or several. weight: its share of a run's cases,
    relative to other probes. of_memory: only the way in which arrays lie in memory makes its cases differ from others,
    so subjects whose arrays lie in one way alone are not asked. level: the lowest one that a violation of its rule has.
    title: what reports call it; its name unless given.
    """

    rule: str
    name: str
    operations: tuple[str, ...]
    cases: CaseStrategy
    check: Check[Any, Any] = AGREEMENT
    weight: float = 1.0
    of_memory: bool = False
    level: str = CORE
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)

    @property
    def id(self) -> str:
        return probe_id(self.rule, self.name)


def probe_id(rule: str, name: str) -> str:
    return f"{rule} {name}"


def agreement(
    rule: str, name: str, operation: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE
) -> Probe:
    return Probe(rule, name, (operation,), cases, weight=weight, level=level)
