"""Diagnoses for all violations of a tally."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from conformance.diagnosis.matching import MOST
from conformance.diagnosis.memory import STRIDES, because_of_memory
from conformance.diagnosis.precision import AT_MOST
from conformance.guard import Examiner
from conformance.tally import Tally, Violation

PARAMETER = re.compile(r" \((blocks of \d+ keys|-[.e+\d]+)\)$")
"""In which mistakes of one family differ."""
MEASURED = re.compile(rf"^(the scale is) [-+.e\d]+ times|^({AT_MOST}) .*")
"""What is measured on a case, and may come out a little differently on another."""


def diagnosed(tally: Tally, examiner: Examiner) -> None:
    """Add to every violation the known mistakes that its case's answers match."""
    for key, violation in tally.violations.items():
        tally.violations[key] = replace(violation, diagnosis=diagnosis(violation, examiner))


def diagnosis(violation: Violation, examiner: Examiner) -> tuple[str, ...]:
    """Names of mistakes; none where nothing known matches, or nothing was answered."""
    if violation.finding.message or violation.material is None:  # no numbers that could be compared
        return ()
    if because_of_memory(examiner, violation.examined_by, violation.material):
        return (STRIDES,)
    names = asked(violation, violation.material, examiner)
    if violation.uncut is not None and names:
        names = explaining(names, asked(violation, violation.uncut, examiner))
    return in_families(names)[:MOST]


def explaining(names: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, ...]:
    """Of the names that explain the case that is shown, those that explain the one before it was cut down too."""
    known = set(map(kind, before))
    return tuple(name for name in names if kind(name) in known)


def kind(name: str) -> str:
    """The name without what is measured."""
    return MEASURED.sub(lambda found: found[1] or found[2], name)


def in_families(names: Iterable[str]) -> tuple[str, ...]:
    """Each mistake once; without its parameter where it may have several values."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(PARAMETER.sub("", name), []).append(name)
    return tuple(members[0] if len(members) == 1 else family for family, members in families.items())


def asked(violation: Violation, material: Any, examiner: Examiner) -> tuple[str, ...]:
    found = examiner("diagnosis", (violation.examined_by, material, violation.finding), None)
    return tuple(finding.message for finding in found if finding.name == "diagnosis")
