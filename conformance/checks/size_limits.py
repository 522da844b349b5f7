"""Sizes that a subject cannot take: the first case that fails for its size says so, and none as large is asked."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.case import Case
from conformance.cases.features import dimensions
from conformance.checks.findings import Finding, NoAnswer, Size

LARGE = 128
"""Sizes up to this one are ordinary: a call that fails there fails for another reason."""


class SizeLimits:
    """answered: the largest size in each dimension of all calls that were answered. limits: what none may exceed."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self.reported: set[str] = set()

    def is_too_large(self, case: Case) -> bool:
        """Whether calls of this size are known to fail."""
        return bool(self.limits) and any(size > self.limits.get(name, size) for name, size in dimensions(case).items())

    def learn_limits(self, case: Case, findings: list[Finding]) -> list[Finding]:
        """The findings; a failure names the size, where none as large was answered before."""
        sizes = dimensions(case)
        if not any(finding.name == "call" and isinstance(finding.detail, NoAnswer) for finding in findings):
            self.answered = {name: max(size, self.answered.get(name, 0)) for name, size in sizes.items()}
            return findings
        growth = {n: size / max(self.answered.get(n, 1), 1) for n, size in sizes.items() if size > LARGE}
        name = max(growth, key=lambda name: growth[name], default="")
        if growth.get(name, 0) <= 1:
            return findings
        self.limits[name] = min(sizes[name] - 1, self.limits.get(name, sizes[name]))
        return [add_size(finding, Size(name, sizes[name])) for finding in findings]

    def is_reported(self, finding: Finding) -> bool:
        """Whether a failure for the size of the same dimension has been reported."""
        return dimension(finding) in self.reported

    def report_again(self, finding: Finding) -> bool:
        """Whether a failure for the size of the same dimension has been reported; from now on it has."""
        name = dimension(finding)
        known = name in self.reported
        self.reported |= {name} if name else set()
        return known


def dimension(finding: Finding) -> str:
    """The one of whose size the failure speaks; empty where it speaks of none."""
    detail = finding.detail
    return detail.size.dimension if isinstance(detail, NoAnswer) and detail.size is not None else ""


def add_size(finding: Finding, size: Size) -> Finding:
    """A failed call with the size at which it failed; any other finding as it is."""
    detail = finding.detail
    if finding.name != "call" or not isinstance(detail, NoAnswer) or detail.size is not None:
        return finding
    return replace(finding, detail=replace(detail, size=size))
