"""Conventions that accept what a known mistake makes of the numbers: a mistake for some is on purpose for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.results import Violation
from conformance.diagnosis.precision import AT_MOST
from conformance.diagnosis.rotary import IN_SINGLE, NARROW, NARROW_PRODUCTS
from conformance.sampling.strategies import roundings

CONVENTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    (IN_SINGLE, {"angles": "float32"}),
    ("frequencies are rounded to float32", {"angles": "float32"}),
    (NARROW, {"rotation": "rounded"}),
    (NARROW_PRODUCTS, {"rotation": "inputs"}),
    ("the normalised row is rounded before it meets the weight", {"normalized": "inputs"}),
    ("weights are rounded to ", {"weights": "inputs"}),
    ("parts of the keys are merged by one log-sum-exp each", {"merging": "logsumexp"}),
    (f"{AT_MOST} gradients added up over heads in ", {"shared_heads": "rounded"}),
    (f"{AT_MOST} gradients added up over heads in ", {"shared_heads": "inputs"}),
)
"""How the names of mistakes begin or go on, and the convention that a subject would declare; the narrower one first."""


def departures(violation: Violation, declaration: Declaration) -> dict[str, str]:
    """Return the conventions under which the worst element conforms, in the smallest case and in those of other dtypes.

    A convention is one that a known mistake of the diagnosis stands for, and that is not declared.
    """
    found: dict[str, str] = {}
    for one in (violation, *(worst.found for worst in violation.worst.values() if worst.another)):
        named = {name: value for conventions in named_by(one) for name, value in conventions.items()}
        for conventions in (*named_by(one), named):
            if conventions and accepted(one, declaration.promising(**found | conventions)):
                found |= conventions
                break
    return found


def named_by(violation: Violation) -> Iterator[dict[str, str]]:
    for name, conventions in CONVENTIONS:
        if any(name in line for line in violation.diagnosis):
            yield conventions


def accepted(violation: Violation, declaration: Declaration) -> bool:
    """Whether the worst element of the violation is within the bound of a subject with this declaration."""
    case, finding = violation.case, violation.finding
    if not isinstance(case, Case) or finding.message or not np.isfinite(finding.got - finding.expected):
        return False
    bounds = bound(replace(case, rounding=roundings(declaration, case.dtype)))
    return finding.name in bounds and bool(
        abs(finding.got - finding.expected) <= bounds[finding.name][tuple(finding.index)]
    )
