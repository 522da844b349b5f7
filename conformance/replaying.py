"""Replay files: one violation, with all that is needed to see it again; nothing is drawn anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.encoding import decode, encode
from conformance.examinations import EXAMINATIONS
from conformance.guard import TIME_LIMIT, Examiner
from conformance.tally import Violation
from conformance.targets import Target
from conformance.verdict import Finding

FORMAT, VERSION = "transformer-conformance replay", 1


def save(violation: Violation, path: str | Path) -> None:
    """Write the violation's replay file."""
    target = violation.target or Target(violation.subject, violation.case.operation)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "rule": violation.rule,
        "title": violation.title,
        "subject": violation.subject,
        "message": violation.message,
        "diagnosis": list(violation.diagnosis),
        "target": encode_target(target),
        "examined_by": violation.examined_by,
        "material": encode(violation.material),
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def encode_target(target: Target) -> dict[str, Any]:
    """A callable that has no name to be found by must be given anew when the file is replayed."""
    given = {name: value for name, value in target.given.items() if not callable(value)}
    given = {name: sorted(v) if isinstance(v, set | frozenset) else v for name, v in given.items()}
    subject = target.subject if isinstance(target.subject, str) else None
    fields = {"subject": subject, "operation": target.operation, "arrays": target.arrays, "device": target.device}
    return fields | {"name": target.title, "given": encode(given)}


def replay(path: str | Path, subject: str | Callable[..., Any] | None = None) -> list[Finding]:
    """Ask the same of the file's subject again, or of another one; a ratio above 1 is the violation seen again.

    ValueError where the file is no replay file, or where its subject has to be given.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a replay file: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no replay file")
    if content["version"] != VERSION:
        raise ValueError(f"{path} has version {content['version']}, expected {VERSION}")
    fields = content["target"]
    if subject is None and fields["subject"] is None:
        raise ValueError(f"{path} was written for a function without a name to find it by: give the subject")
    target = Target(**(fields | {"given": decode(fields["given"])}))
    target = target if subject is None else replace(target, subject=subject, name=None)
    material = decode(content["material"])
    prepared = EXAMINATIONS[content["examined_by"]].prepare(material)
    return Examiner(target.make(), TIME_LIMIT)(content["examined_by"], material, prepared)
