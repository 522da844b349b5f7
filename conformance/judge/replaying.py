"""One violation seen again, from its replay file; nothing is drawn anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.features import unsupported_features
from conformance.checks.catalogue import CHECKS
from conformance.checks.encoding import decode
from conformance.checks.findings import Finding, is_error
from conformance.checks.levels import ISOLATION_RULE, NO_ISOLATION
from conformance.oracle.reference import balls_available
from conformance.reports.replays import FORMAT, VERSION
from conformance.runner.in_process import TIME_LIMIT, judge_scope
from conformance.runner.in_subprocess import runner_for
from conformance.subjects.callables import Target


def replay(
    path: str | Path,
    subject: str | Callable[..., Any] | None = None,
    *,
    vjp: str | Callable[..., Any] | None = None,
    time_limit: float | None = None,
    isolate: bool | None = None,
) -> list[Finding]:
    """Try the case of a replay file again, on the file's subject or on another one.

    Args:
        path: The replay file.
        subject: A function, or named like one; unless given, the one that the file names.
        vjp: The function for its gradients, if one was given to `check`; a function, or named like one.
        time_limit: Seconds; those that the subject had then, unless given.
        isolate: Whether the subject runs in a subprocess, as in `check`.

    Returns:
        What the check finds; an error ratio above 1 is the violation seen again. Nothing where the function refuses the
        call and declares by now that it does not support it, or promises nothing of what the rule says.

    Raises:
        ValueError: The file is no replay file, its subject or its vjp has to be given, or its case cannot be judged
            here.
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
        with judge_scope():
            judgeable(check.case_of(example))
            findings = runner(check, example, check.prepare(example))
        return drop_unasked(findings, check.case_of(example), content["rule"], runner.declaration)
    finally:
        runner.close()


def drop_unasked(findings: list[Finding], case: Case | None, rule: str, declaration: Declaration) -> list[Finding]:
    """Without what a function may do that declares what it does not support."""
    if rule == ISOLATION_RULE and NO_ISOLATION.items() <= declaration.conventions.items():
        return []
    refuses = case is not None and any(unsupported_features(case, declaration))
    return [one for one in findings if not (refuses and is_error(one))]


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


def target_of(
    content: dict[str, Any],
    path: str | Path,
    subject: str | Callable[..., object] | None,
    vjp: str | Callable[..., object] | None,
) -> Target:
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
