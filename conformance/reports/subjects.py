"""A report's subjects: from the result of a check, and from the results of a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.cases.declaration import EVERYTHING
from conformance.cases.facts import operations
from conformance.checks.levels import STRICT
from conformance.checks.results import Results, Violation
from conformance.reports.content import Content, subject_content, violation_content
from conformance.reports.replays import write_replay
from conformance.subjects.targets import Target
from specification import RULES

if TYPE_CHECKING:
    from conformance.judge.report import Report


def checked(report: Report, replays: Path | None, *, peer: bool = False) -> Content:
    """Return the part about a checked subject. replays: folder for replay files."""
    files = (None if replays is None else write_replay(violation, replays) for violation in report.violations)
    following = {violation.rule for violation in report.following}
    violations = [violation_content(v, f, v.rule in following) for v, f in zip(report.violations, files, strict=True)]
    target, chosen = report.target, report.chosen
    rules = [rule for rule in ("CALL", *rules_listed(report.operation)) if not chosen or rule in chosen]
    operations = [target.operation]
    return subject_content(
        target,
        report.declaration,
        operations,
        rules,
        report.rules,
        violations,
        untried=report.untried,
        headline=report.headline,
        seconds=report.seconds,
        peer=peer,
        left_out=report.left_out,
        never_given=report.never_given,
        profile=report.profile,
        some=bool(chosen),
    )


def rules_listed(operation: str) -> list[str]:
    """Return the rules of a function that has this operation alone."""
    from conformance.operations.probes import PROBES

    return [probe.rule for probe in PROBES if probe.operations == (operation,)]


def run_subject(
    results: Results, name: str, arrays: str, device: str, chosen: Collection[str], untried: str = ""
) -> Content:
    """Return the part about an implementation of this project, which is held to `strict`.

    Its violations can be replayed from the report. chosen: all rules, or some. untried: why the judge did not try
    everything.
    """
    target = Target(name, "attention", arrays, device)

    def named(violation: Violation) -> Violation:
        return replace(violation, target=replace(target, operation=violation.case.operation))

    violations = [violation_content(named(v)) for (_, subject), v in results.violations.items() if subject == name]
    cells = {rule: cell for (rule, subject), cell in results.rules.items() if subject == name}
    some = not set(RULES) <= set(chosen)
    return subject_content(
        target, EVERYTHING, list(operations()), chosen, cells, violations, untried, profile=STRICT, some=some
    )
