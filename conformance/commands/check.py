"""`conformance check`: anybody's function against every rule of an operation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from conformance.commands.console import bar, console, errors, explained, interrupted, save_report
from conformance.commands.options import Effort, Html, Json, Junit, Seed, conventions_of

OPERATION = "attention, layer_norm, ...: what it is to compute"
SUPPORTS = "what it takes, or no-softcap and the like for all but that; unless given, all its signature has room for"
CONVENTION = "declared departures, such as empty_rows=mean,polarity=masked"


def check(
    target: Annotated[str, typer.Argument(help="package.module:callable or path/to/file.py:callable")],
    operation: Annotated[str, typer.Option(help=OPERATION)],
    arrays: Annotated[str, typer.Option(help="numpy, torch or jax: what it is given and returns")] = "numpy",
    device: Annotated[str, typer.Option(help="cpu or cuda; NumPy stays on the CPU")] = "cpu",
    dtypes: Annotated[str | None, typer.Option(help="float32,float16: those to be judged; all unless given")] = None,
    supports: Annotated[str | None, typer.Option(help=SUPPORTS)] = None,
    layout: Annotated[str | None, typer.Option(help="BTHD for arrays [batch, length, heads, width]")] = None,
    width_multiple: Annotated[int | None, typer.Option(help="what widths must be multiples of", min=1)] = None,
    convention: Annotated[list[str] | None, typer.Option(help=CONVENTION)] = None,
    effort: Effort = "default",
    seed: Seed = None,
    rule: Annotated[list[str] | None, typer.Option(help="only this rule; may be given again")] = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds for one case; 30 unless given", min=0.01)] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="in a process of its own, which may crash")] = False,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="look for no smaller failing cases")] = False,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
    replays: Annotated[Path, typer.Option(help="folder for replay files")] = Path("conformance-replays"),
) -> None:
    """Judge a function that is to compute an operation.

    Exit code 0: it conforms. 1: it violates a rule. 2: it cannot be judged.
    """
    from conformance.reports.tables import subject_report

    given: dict[str, Any] = {"arrays": arrays, "device": device, "dtypes": dtypes, "supports": supports}
    given |= {"layout": layout, "width_multiple": width_multiple, "effort": effort, "seed": seed}
    given |= {"rules": rule, "isolate": isolate, "shrink": not no_shrink}
    given |= {} if time_limit is None else {"time_limit": time_limit}
    try:
        report = judged(target, operation, convention or [], given, replays)
    except KeyboardInterrupt:
        interrupted()
    for subject in report["subjects"]:
        console.print(subject_report(subject, report["seed"]))
    if report["error"] is not None:
        console.print(Text(f"not judged: {report['error']}", style="red"))
    save_report(report, {"json": json, "junit": junit, "html": html})
    raise typer.Exit(2 if report["error"] is not None else 0 if report["conforms"] else 1)


def judged(target: str, operation: str, convention: list[str], given: dict[str, Any], replays: Path) -> dict[str, Any]:
    """The report; with nothing but an error in it where the target, or what is said of it, cannot be judged."""
    from conformance import checking
    from conformance.reports.content import document
    from conformance.reports.subjects import checked

    asked = False
    try:
        known_usage(operation, given)
        given = given | {"conventions": conventions_of(convention) or None}
        examples = checking.EFFORTS.get(given["effort"], 0)
        with bar("loading", steps(operation, given["rules"], examples), errors) as advance:

            def progress(rule: str, title: str) -> None:
                nonlocal asked
                asked = True
                advance(rule, title)

            report = checking.check(target, operation, progress=progress, **given)
    except Exception as error:
        if asked:
            raise
        return document("check", [], seed=given["seed"], effort=given["effort"], error=explained(error))
    cases, subject = checking.EFFORTS[report.effort], checked(report, replays, chosen=given["rules"])
    told = {"seed": report.seed, "effort": report.effort, "cases": cases, "seconds": report.seconds}
    return document("check", [subject], **told)


def known_usage(operation: str, given: dict[str, Any]) -> None:
    """ValueError for what `check` takes without a word."""
    from conformance.declaration import known
    from conformance.frameworks import FRAMEWORKS
    from conformance.judged_rules import JUDGED
    from conformance.spreading import POSITIONAL

    known("operation", [operation], POSITIONAL)
    known("arrays", [given["arrays"]], FRAMEWORKS)
    known("device", [given["device"]], ("cpu", "cuda"))
    known("rule", given["rules"] or [], JUDGED)
    if given["device"] == "cuda" and given["arrays"] == "torch":
        from conformance.commands.run import gpu_available

        if not gpu_available():
            raise ValueError("device: PyTorch sees no GPU")


def steps(operation: str, rules: list[str] | None, examples: int) -> int:
    """About how many cases there will be."""
    from conformance.probes import PROBES
    from conformance.run import cases_of

    chosen = [p for p in PROBES if p.operations == (operation,) and (not rules or p.rule in rules)]
    return sum(cases_of(probe, examples) for probe in chosen)
