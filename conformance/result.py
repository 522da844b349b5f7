"""What a check found: for every rule how many cases and how far off, and every violation with its evidence."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conformance.judged_rules import JUDGED
from conformance.tally import Cell, Tally, Violation
from conformance.targets import Target

if TYPE_CHECKING:
    from conformance.judgement import Judgement

PACKAGES = ("numpy", "torch", "jax", "hypothesis", "transformer-conformance")


@dataclass(frozen=True)
class Report:
    """One subject's result.

    rules: for every rule that was tried, its cases and worst ratio. untried: why not everything was tried, or empty.
    """

    target: Target
    effort: str
    seed: int
    rules: dict[str, Cell]
    violations: list[Violation]
    untried: str
    seconds: float
    versions: dict[str, str]

    @property
    def subject(self) -> str:
        return self.target.title

    @property
    def operation(self) -> str:
        return self.target.operation

    @property
    def cases(self) -> int:
        return sum(cell.cases for cell in self.rules.values())

    @property
    def headline(self) -> str:
        """The known mistake that explains most violations; empty where none is known."""
        known = Counter(name for violation in self.violations for name in violation.diagnosis)
        if not known:
            return ""
        (name, count), total = known.most_common(1)[0], len(self.violations)
        return f"{name}: this explains {count} of {total} violations" if total > 1 else name

    @property
    def conforms(self) -> bool:
        return not self.violations and not self.untried


def report_of(target: Target, judgement: Judgement, effort: str, seconds: float) -> Report:
    tally: Tally = judgement.tally
    rules = {rule: tally.rules[rule, target.title] for rule in JUDGED if (rule, target.title) in tally.rules}
    violations = [replace(violation, target=target) for violation in tally.violations.values()]
    violations.sort(key=lambda violation: list(JUDGED).index(violation.rule))
    return Report(target, effort, judgement.seed, rules, violations, judgement.untried, seconds, versions())


def versions() -> dict[str, str]:
    """Of Python and of the packages that count, as installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
