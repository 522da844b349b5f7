"""A report's subjects: from the result of a check, and from the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.cases.declaration import EVERYTHING
from conformance.cases.facts import operations
from conformance.checks.levels import JUDGED, STRICT
from conformance.checks.results import Results
from conformance.diagnosis.cause import Cause, cause_kind
from conformance.reports.causes import cause_content
from conformance.reports.content import Content, subject_content, violation_content
from conformance.reports.replays import write_replay
from conformance.subjects.callables import Target
from specification import RULES

if TYPE_CHECKING:
    from conformance.judge.report import Report


def checked_content(report: Report, replays: Path | None, *, peer: bool = False) -> Content:
    """Return the part about a checked subject. replays: folder for replay files."""
    shown = {id(cause.lead) for cause in report.causes}
    numbers = {id(one): number for number, cause in enumerate(report.causes) for one in cause.violations}
    violations = [
        violation_content(one, cause=numbers.get(id(one))) for one in report.violations if id(one) not in shown
    ]
    files = Counter[str]()
    causes = []
    for cause in report.causes:
        files[cause.lead.rule] += 1
        causes.append(cause_with_violation(cause, replays, number=files[cause.lead.rule]))
    listed = {id(one) for one in report.violations}
    for cause, content in zip(report.causes, causes, strict=True):
        if id(cause.lead) in listed:  # its replay stands in the report once
            violations.append(content["violation"])
            content["violation"] = content["violation"] | {"replay": None}
    violations.sort(key=lambda content: list(JUDGED).index(content["rule"]))
    target, chosen = report.target, report.chosen
    rules = [rule for rule in ("CALL", *rules_of_operation(report.operation)) if not chosen or rule in chosen]
    told = {name: getattr(report, name) for name in ("untried", "seconds", "left_out", "never_given", "profile")}
    told |= {"causes": causes, "peer": peer, "some": bool(chosen)}
    return subject_content(target, report.declaration, [target.operation], rules, report.rules, violations, **told)


def cause_with_violation(cause: Cause, replays: Path | None, *, titled: bool = False, number: int = 1) -> Content:
    """Return a cause with the violation that shows it. replays: folder for its replay file; see `write_replay`."""
    path = None if replays is None else write_replay(cause.lead, replays, titled=titled, number=number)
    return cause_content(cause) | {"violation": violation_content(cause.lead, path)}


def rules_of_operation(operation: str) -> list[str]:
    """Return the rules of a function that has this operation alone; a model's are those of its cases."""
    if operation == "model":
        return []
    from conformance.operations.probes import probes_of_all

    return [probe.rule for probe in probes_of_all(operation)]


def run_subject(
    results: Results,
    name: str,
    arrays: str,
    device: str,
    chosen: Collection[str],
    untried: str = "",
    left_out: str = "",
) -> Content:
    """Return the part about an implementation of this project, which is held to `strict`.

    Its violations can be replayed from the report, and each is a cause of its own. chosen: all rules, or some. untried:
    why the judge did not try everything. left_out: what other parts of the run are about.
    """
    target = Target(name, "attention", arrays, device)
    broken = [
        replace(violation, target=replace(target, operation=violation.case.operation))
        for violation in results.violations.values()
        if violation.subject == name
    ]
    causes = [cause_with_violation(Cause(cause_kind(one), (one,)), None) for one in broken]
    violations = [cause["violation"] for cause in causes]
    causes = [cause | {"violation": cause["violation"] | {"replay": None}} for cause in causes]
    cells = {rule: cell for (rule, subject), cell in results.rules.items() if subject == name}
    told: Content = {"left_out": left_out, "profile": STRICT, "some": bool(left_out) or not set(RULES) <= set(chosen)}
    return subject_content(target, EVERYTHING, list(operations()), chosen, cells, violations, untried, causes, **told)
