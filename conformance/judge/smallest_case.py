"""The smallest case that shows a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from conformance.cases.expectations import CaseExample
from conformance.checks.catalogue import AGREEMENT, DESCRIPTION, SHAPES
from conformance.checks.comparison import breaks
from conformance.checks.findings import Finding, is_error, same_error
from conformance.checks.levels import ISOLATION_RULE
from conformance.checks.results import Results, Violation
from conformance.judge.attribution import is_in_empty_row
from conformance.judge.trial import make_violation
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import cuttable, shrink_example
from conformance.subjects.subject import NumpySubject

SHRINKING = 20.0
"""Seconds spent at most on making one failing case smaller, where nobody looks for causes."""
OF_DTYPES = ("ATT-9", "NORM-2")
"""Rules of dtypes: a violation of theirs is not shown in another one."""


def shrink_violations(results: Results, runners: Iterable[Runner], seconds: float) -> None:
    """Make the case of every violation smaller, where nobody looks for its cause."""
    by_name = {runner.name: runner for runner in runners}
    for key, violation in results.violations.items():
        if not by_name[violation.subject].overrun and not violation.depends_on_state:
            results.violations[key] = cut_down(violation, by_name[violation.subject], seconds)


Accepts = Callable[[Violation, CaseExample], bool]
"""Whether a smaller example still shows what the first one does."""


def cut_down(least: Violation, runner: Runner, seconds: float, accepts: Accepts | None = None) -> Violation:
    """The violation on a smaller case, where the example is a case, or several that can be cut alike.

    The smaller case fails as the first one does: the same kind of finding, in a result that is wrong there too, and the
    same error if one is raised. Nor does a wrong result shrink to lost digits, to what fewer profiles ask for, or to a
    row that allows nothing, which is of another rule; nor NaN or infinity to a number. `steady` is False if the
    smallest case then passed. The case of a rule of dtypes stays in its dtype, and so does one that loses digits in 16
    bits.
    """
    if not cuttable(least.example):
        return least
    wrong = error_finder(least, runner)
    level = least.finding.level
    first = [least.finding, *(one for one in wrong(least.example) or () if breaks([one], level))]
    failures = {id(least.example): least}
    empty = least.case is not None and is_in_empty_row(least.case, least.finding)

    def fails(example: CaseExample) -> bool:
        findings = wrong(example)
        findings = [one for one in findings or () if any(is_same_failure(one, other) for other in first)]
        if not breaks(findings, level):
            return False
        new = make_violation(least.rule, least.title, least.check, runner, example, findings)
        new = replace(new, least=least.least, probe=least.probe, worst=least.worst)
        if least.stands_before(new):
            return False
        if new.is_numeric and not least.is_numeric:
            return False
        if new.case is not None and is_in_empty_row(new.case, new.finding) and not empty:
            return False
        if accepts is not None and not accepts(new, example):
            return False
        failures.setdefault(id(example), new)
        return True

    masked = least.check in (DESCRIPTION, SHAPES) or least.rule == ISOLATION_RULE
    keeps_dtype = least.rule in OF_DTYPES or least.rounds_16_bits
    reduced = shrink_example(least.example, runner.declaration, fails, seconds, masked, keeps_dtype, least.loses_digits)
    return replace(failures[id(reduced.example)], uncut=least.example, steady=reduced.steady)


def is_same_failure(finding: Finding, other: Finding) -> bool:
    """Whether two findings are of one kind and result, and of one error if it was raised.

    The number of a part may differ: the first parts of a smaller case may be others.
    """
    if finding.kind != other.kind or finding.name.partition("[")[0] != other.name.partition("[")[0]:
        return False
    return not is_error(finding) or same_error(finding, other)


def error_finder(violation: Violation, runner: Runner) -> Callable[[CaseExample], list[Finding] | None]:
    """What the subject gets wrong of examples like the violation's; None where it gets nothing wrong.

    What is made from an example may no longer be what its check takes for granted (rows that are constant, two
    cases with one answer). Then the definition fails too, and nothing is wrong.
    """
    definition = Runner(NumpySubject())
    prepared: list[Any] = [None, None]

    def wrong(example: CaseExample) -> list[Finding] | None:
        if prepared[0] is not example:
            try:
                prepared[:] = example, violation.check.prepare(example)
            except (TypeError, ValueError):  # the definition refuses it
                return None
        findings = runner(violation.check, example, prepared[1])
        if not breaks(findings, violation.finding.level):
            return None
        sure = violation.check == AGREEMENT or not breaks(definition(violation.check, example, prepared[1]))
        return findings if sure else None

    return wrong
