"""Conventions that accept what a known mistake makes of the numbers: a mistake for some is on purpose for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.results import Violation
from conformance.diagnosis.backward import SAVED
from conformance.diagnosis.precision import AT_MOST
from conformance.diagnosis.rotary import IN_SINGLE, NARROW, NARROW_PRODUCTS
from conformance.sampling.strategies import roundings

CONVENTIONS: dict[str, tuple[dict[str, str], ...]] = {
    IN_SINGLE: ({"angles": "float32"},),
    "frequencies are rounded to float32": ({"angles": "float32"},),
    NARROW: ({"rotation": "rounded"},),
    NARROW_PRODUCTS: ({"rotation": "inputs"},),
    "the normalised row is rounded before it meets the weight": ({"normalized": "inputs"},),
    "weights are rounded to ": ({"weights": "inputs"},),
    SAVED: ({"saved": "logsumexp"},),
    "parts of the keys are merged by one log-sum-exp each": ({"merging": "logsumexp"},),
    f"{AT_MOST} gradients added up over heads in ": ({"shared_heads": "rounded"}, {"shared_heads": "inputs"}),
}
"""How names of mistakes begin, and the conventions that may accept each, the narrower first."""

LACKING = {"statistics run over the last axis only": "axes"}
"""Names of mistakes by which a feature is not supported, and no error raised."""


def departures(violation: Violation, declaration: Declaration) -> dict[str, str]:
    """Return the conventions under which the worst element conforms, in the smallest case and in those of other dtypes.

    They are those of the first known mistake of a diagnosis that can be declared.
    """
    found: dict[str, str] = {}
    for one in (violation, *(worst.found for worst in violation.worst.values() if worst.another)):
        candidates = (conventions for line in one.diagnosis for conventions in meant_by(line))
        declared = (found | conventions for conventions in candidates)
        found = next((both for both in declared if accepted(one, declaration.promising(**both))), found)
    return found


def meant_by(line: str) -> Iterator[dict[str, str]]:
    """The conventions that stand for the mistakes in a line of a diagnosis, all of them at once."""
    parts = line.split("; ")
    named = [alternatives for name, alternatives in CONVENTIONS.items() if any(p.startswith(name) for p in parts)]
    for chosen in product(*named) if named else ():
        yield {name: value for conventions in chosen for name, value in conventions.items()}


def accepted(violation: Violation, declaration: Declaration) -> bool:
    """Whether the worst element of the violation is within the bound of a subject with this declaration."""
    case, finding = violation.case, violation.finding
    if not isinstance(case, Case) or finding.kind != "value" or not np.isfinite(finding.got - finding.expected):
        return False
    bounds = bound(replace(case, rounding=roundings(declaration, case.dtype)))
    return finding.name in bounds and bool(
        abs(finding.got - finding.expected) <= bounds[finding.name][tuple(finding.index)]
    )
