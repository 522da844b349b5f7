"""Replay files of violations, and the command that replays each."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.checks.catalogue import NOTHING
from conformance.checks.encoding import encode
from conformance.checks.results import Violation
from conformance.reports.sentences import describe_finding
from conformance.reports.threshold_sentences import describe_thresholds
from conformance.subjects.callables import Target

FORMAT, VERSION = "transformer-conformance replay", 1


def save_replay(violation: Violation, path: str | Path) -> None:
    """Write the replay file of a violation: all that `replay` needs to see it again.

    Args:
        violation: of a report.
        path: of the file, which is overwritten if there is one.

    Raises:
        TypeError: It cannot be replayed.
    """
    content = replay_content(violation)
    if content is None:
        raise TypeError(f"no replay file can hold this violation of {violation.rule}")
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def replay_content(violation: Violation) -> dict[str, Any] | None:
    """Return all that is needed to see it again; None if no check alone has found it, or no file can hold it."""
    if violation.check == NOTHING:
        return None
    target = violation.target or Target(violation.subject, violation.case.operation)
    try:
        subject, material = encode_target(target), encode(violation.example)
    except TypeError:
        return None
    return {
        "format": FORMAT,
        "version": VERSION,
        "rule": violation.rule,
        "level": violation.level,
        "title": violation.title,
        "subject": violation.subject,
        "message": describe_finding(violation.finding),
        "threshold": describe_thresholds(violation.threshold),
        "target": subject,
        "own_gradients": "vjp" in target.given,
        "time_limit": violation.time_limit,
        "examined_by": violation.check.name,
        "material": material,
    }


def encode_target(target: Target) -> dict[str, Any]:
    """A callable that has no name to be found by must be given anew when the file is replayed."""
    given = {name: value for name, value in target.given.items() if not callable(value)}
    given = {name: sorted(v) if isinstance(v, set | frozenset) else v for name, v in given.items()}
    subject = target.subject if isinstance(target.subject, str) else None
    fields: dict[str, Any] = {
        "subject": subject,
        "operation": target.operation,
        "arrays": target.arrays,
        "device": target.device,
    }
    if target.ranks:
        fields |= {"ranks": target.ranks, "shard": target.shard}
    return fields | {"name": target.title, "given": encode(given)}


def write_replay(violation: Violation, folder: Path, *, titled: bool = False, number: int = 1) -> str | None:
    """Write a replay file and return its path; None if the violation cannot be replayed.

    There is one file for each subject and rule; titled: one for each probe. number: of several of one rule.
    """
    name = f"{slug(violation.subject)}-{violation.rule}" + (f"-{slug(violation.title)}" if titled else "")
    name += f"-{number}" if number > 1 else ""
    path = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        save_replay(violation, path)
    except TypeError:
        return None
    return str(path)


def slug(name: str) -> str:
    return re.sub(r"[^\w.+]+", "-", name).strip("-.")[-80:] or "subject"


def replay_command(violation: Violation, path: str) -> str:
    """Return the command that replays the violation; a call in Python if the function has no importable name."""
    target = violation.target
    given = {} if target is None else {"--target": target.subject, "--vjp": target.given.get("vjp")}
    names = {option: import_name(function) for option, function in given.items() if callable(function)}
    if None in names.values():
        function = ", the function" if "--target" in names else ""
        return f"python: conformance.replay({path!r}{function}{', vjp=its gradients' if '--vjp' in names else ''})"
    return shlex.join(["conformance", "replay", path, *(word for option in names.items() for word in option if word)])


def import_name(function: Callable[..., Any]) -> str | None:
    """Return `path/to/file.py:name` of a function at the top level of its file; None for any other."""
    name, module = getattr(function, "__qualname__", ""), inspect.getmodule(function)
    file = getattr(module, "__file__", None)
    if not name.isidentifier() or file is None or getattr(module, name, None) is not function:
        return None
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"
