"""Whether a mistake that shows in one dtype is there in another one."""

from __future__ import annotations

import math
from dataclasses import replace

from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.checks.check import Check, first, nothing
from conformance.checks.comparison import PRECISION, Finding
from conformance.checks.results import Violation
from conformance.oracle.reference import oracle
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import in_dtype
from conformance.subjects.subject import Subject

LESS = 4.0
"""An error that is so many times smaller on the same numbers is of another mistake,"""
FACTOR = 16.0
"""unless both are, within this factor, as many units of their dtype's rounding."""


def check_element(subject: Subject, example: tuple[Case, Finding], shared: None) -> list[Finding]:
    """The element of which a finding speaks, in the answers to another case."""
    case, finding = example
    got, exact = subject(case)[finding.name], oracle(case)[finding.name].high
    where, name = finding.index, finding.name
    one = replace(finding, got=float(got[where]), expected=float(exact[where]), bound=float(bound(case)[name][where]))
    return [replace(one, ratio=0.0)]


ELEMENT = Check("element", nothing, check_element, first, tells_size=False)


def is_gone(violation: Violation, dtype: str, runner: Runner) -> bool:
    """Whether the error of a violation would show in the same numbers in another dtype, and does not."""
    if not isinstance(violation.example, Case) or violation.finding.kind != "value":
        return False
    same = in_dtype(dtype, runner.declaration)(violation.example)
    if same is None:  # the dtype is one of the call's own arguments
        return False
    found = runner(ELEMENT, (same, violation.finding), None)
    if not found:  # a library's path does not take the dtype
        return False
    (there,) = found
    if there.kind != "value" or not math.isfinite(there.expected):
        return False
    if max(error_of(there), there.bound) * LESS >= error_of(violation.finding):
        return False
    return not 1 / FACTOR <= units(there, dtype) / units(violation.finding, violation.case.dtype) <= FACTOR


def error_of(finding: Finding) -> float:
    """Infinity for what is no number."""
    error = abs(finding.got - finding.expected)
    return error if math.isfinite(error) else math.inf


def units(finding: Finding, dtype: str) -> float:
    """The error in units of the dtype's rounding."""
    return error_of(finding) * 2.0 ** PRECISION[dtype][0]
