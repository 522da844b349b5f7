"""Replay files: one violation, with all that is needed to see it again; nothing is drawn anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.cases.case import Case
from conformance.checks.catalogue import CHECKS
from conformance.checks.comparison import Finding
from conformance.checks.encoding import decode, encode
from conformance.checks.results import Violation
from conformance.oracle.reference import balls_available
from conformance.reports.threshold_sentences import describe_thresholds
from conformance.runner.in_process import TIME_LIMIT, judging
from conformance.runner.in_subprocess import runner_for
from conformance.subjects.targets import Target

FORMAT, VERSION = "transformer-conformance replay", 1


def save(violation: Violation, path: str | Path) -> None:
    """Write the violation's replay file."""
    target = violation.target or Target(violation.subject, violation.case.operation)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "rule": violation.rule,
        "level": violation.level,
        "title": violation.title,
        "subject": violation.subject,
        "message": violation.message,
        "threshold": describe_thresholds(violation.threshold),
        "diagnosis": list(violation.diagnosis),
        "target": encode_target(target),
        "own_gradients": "vjp" in target.given,
        "time_limit": violation.time_limit,
        "examined_by": violation.check.name,
        "material": encode(violation.example),
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def encode_target(target: Target) -> dict[str, Any]:
    """A callable that has no name to be found by must be given anew when the file is replayed."""
    given = {name: value for name, value in target.given.items() if not callable(value)}
    given = {name: sorted(v) if isinstance(v, set | frozenset) else v for name, v in given.items()}
    subject = target.subject if isinstance(target.subject, str) else None
    fields = {"subject": subject, "operation": target.operation, "arrays": target.arrays, "device": target.device}
    return fields | {"name": target.title, "given": encode(given)}


def replay(
    path: str | Path,
    subject: str | Callable[..., Any] | None = None,
    *,
    vjp: str | Callable[..., Any] | None = None,
    time_limit: float | None = None,
    isolate: bool | None = None,
) -> list[Finding]:
    """Ask the same of the file's subject again, or of another one; a ratio above 1 is the violation seen again.

    vjp: the function for its gradients, if one was given to `check`; a function, or named like one.
    time_limit: seconds; those that the subject had then, unless given.
    isolate: whether the subject runs in a subprocess, as in `check`.

    ValueError where the file is no replay file, where its subject or its vjp has to be given, or where its case cannot
    be judged here.
    """
    content = read(path)
    target = target_of(content, path, subject, vjp)
    limit = next(limit for limit in (time_limit, content.get("time_limit"), TIME_LIMIT) if limit is not None)
    check, example = CHECKS[content["examined_by"]], decode(content["material"])
    runner = runner_for(target, limit, isolate)
    try:
        differentiated = runner.declaration.vjp is not None or (subject is not None and target.arrays != "numpy")
        if content.get("own_gradients") and not differentiated:
            raise ValueError(f"{path} was written for a function whose gradients another one gives: give that as vjp")
        with judging():
            judgeable(check.case_of(example))
            return runner(check, example, check.prepare(example))
    finally:
        runner.close()


def read(path: str | Path) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a replay file: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no replay file")
    if content.get("version") != VERSION:
        raise ValueError(f"{path} has version {content.get('version')}, expected {VERSION}")
    return content


def target_of(content: dict[str, Any], path: str | Path, subject: Any, vjp: Any) -> Target:
    """The file's target, with what is given in place of what it says."""
    fields = content["target"]
    if subject is None and fields["subject"] is None:
        raise ValueError(f"{path} was written for a function without a name to find it by: give the subject")
    given = decode(fields["given"])
    if vjp is not None or subject is not None:  # the file's own gradients are those of the file's own subject
        given = {name: value for name, value in (given | {"vjp": vjp}).items() if value is not None}
    target = Target(**(fields | {"given": given}))
    return target if subject is None else replace(target, subject=subject, name=None)


def judgeable(case: Case | None) -> None:
    if case is not None and case.dtype == "float64" and not case.special and not balls_available():
        raise ValueError("its case is in float64, whose oracle needs python-flint, which is not installed")
