"""`conformance replay`: try the cases of violations again. It generates no cases, so it loads quickly."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.text import Text

from conformance.cli.console import console, explain_error, refuse
from conformance.cli.options import Isolate

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, zlib.error)
"""Errors of a damaged file, of a file without a violation, and of a target that cannot be loaded."""


def replay(
    file: Annotated[Path, typer.Argument(help="a replay file, or a report written by --json", metavar="FILE")],
    target: Annotated[str | None, typer.Option(help="call this function instead, as in `check`")] = None,
    vjp: Annotated[str | None, typer.Option(help="the function of its gradients, if `check` had one")] = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds for one case; by default as in the file")] = None,
    isolate: Isolate = None,
) -> None:
    """Try the case of a violation again. Exit code 1 if the violation occurs again."""
    from conformance.runner.own_time import valid_limit

    try:
        contents, time_limit = contents_of(file), valid_limit(time_limit)
    except UNREADABLE as error:
        refuse(f"{file} cannot be replayed: {explain_error(error)}")
    given = {"subject": target, "vjp": vjp, "time_limit": time_limit, "isolate": isolate}
    seen = [show_replay(content, given) for content in contents]
    raise typer.Exit(1 if any(seen) else 0)


def contents_of(file: Path) -> list[dict[str, Any]]:
    """Return the content of a replay file, or of every violation of a report."""
    from conformance.reports.comparison import read_content

    try:
        content = json.loads(file.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(getattr(error, "strerror", None) or error) from error
    if not isinstance(content, dict) or "schema" not in content:
        return [content]
    subjects = read_content(file)["subjects"]
    violations = [violation for subject in subjects for violation in subject["violations"]]
    violations += [cause["violation"] for subject in subjects for cause in subject.get("causes", [])]
    found = [violation["replay"] for violation in violations if violation["replay"] is not None]
    if not found:
        raise ValueError("the report contains no violation")
    return found


def show_replay(content: dict[str, Any], given: dict[str, Any]) -> bool:
    """Print the earlier result and the new one; return whether the new one violates the rule.

    given: values from the command line, which replace those in the file.
    """
    from conformance.checks.comparison import worst
    from conformance.checks.levels import JUDGED
    from conformance.judge.replaying import replay
    from conformance.reports.content import clean_text
    from conformance.reports.sentences import describe_finding

    with TemporaryDirectory() as folder:
        path = Path(folder) / "replay.json"
        path.write_text(json.dumps(content))
        try:
            findings = replay(path, **given)
            rule = JUDGED[content["rule"]]
            told = {"found by": content["title"], "then": f"{content['subject']}: {content['message']}"}
        except UNREADABLE as error:
            refuse(f"cannot be replayed: {explain_error(error).replace(str(path), 'the file')}")
    shown = worst(findings) if findings else None
    again = shown is not None and shown.ratio > 1
    if shown is not None and again:
        told["now"] = f"{describe_finding(shown)}{shown.raised_at and f' (raised at {shown.raised_at})'}"
    elif not findings:
        told["now"] = "refused, or asked no more: the function declares that it does not support this"
    else:
        told["now"] = f"conforms, worst error {0.0 if shown is None else shown.ratio:.3g} of its bound"
    console.print(Text.assemble((f"{rule.id} {rule.title}: ", "bold"), rule.statement))
    for label, text in told.items():
        console.print(Text(f"  {label:<10}{clean_text(text)}"))
    console.print(Text("  seen again" if again else "  not seen again", style="bold red" if again else "bold green"))
    return again
