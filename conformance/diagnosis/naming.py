"""Diagnoses for all violations of a tally."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.guard import Examiner
from conformance.tally import Tally, Violation


def diagnosed(tally: Tally, examiner: Examiner) -> None:
    """Add to every violation the known mistakes that its case's answers match."""
    for key, violation in tally.violations.items():
        tally.violations[key] = replace(violation, diagnosis=diagnosis(violation, examiner))


def diagnosis(violation: Violation, examiner: Examiner) -> tuple[str, ...]:
    """Names of mistakes; none where nothing known matches, or nothing was answered."""
    if violation.finding.message or violation.material is None:  # no numbers that could be compared
        return ()
    names = asked(violation, violation.material, examiner)
    if violation.uncut is None:
        return names
    before = asked(violation, violation.uncut, examiner)
    return tuple(name for name in names if name in before) or before


def asked(violation: Violation, material: Any, examiner: Examiner) -> tuple[str, ...]:
    found = examiner("diagnosis", (violation.examined_by, material, violation.finding), None)
    return tuple(finding.message for finding in found if finding.name == "diagnosis")
