"""`conformance check`: judge one function by every rule of an operation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from conformance.checks.levels import DEFAULT, LEVELS
from conformance.cli.console import bar, console, errors, explain_error, save_report
from conformance.cli.options import (
    REPORTS,
    Device,
    Effort,
    HeadWidths,
    Html,
    Isolate,
    Json,
    Junit,
    Limits,
    Profile,
    Seed,
    Tile,
    Windows,
    array_names,
    complete_names,
    convention_names,
    conventions_of,
    declaration_option,
    head_widths_of,
    limits_of,
    operation_names,
    rule_names,
    support_names,
    tile_of,
    windows_of,
)
from specification.dtypes import FLOATING

if TYPE_CHECKING:
    from conformance.judge.report import Report

INTERRUPTED = "interrupted"
OPERATION = "what the function computes: attention, layer_norm, ...; conformance show NAME --head shows its parameters"
SUPPORTS = "features that it supports, or no-softcap for all but that; by default, all that its signature allows"
ARRAYS = "arrays that it takes and returns: numpy, torch or jax; by default a guess, which the report names"
DTYPES = "dtypes to judge, such as float32,float16; all by default"
LAYOUT = "BTHD if its arrays are [batch, length, heads, width]"
RULE = "judge only this rule; may be repeated"
VJP = "the function of its gradients, as package.module:function or path/to/file.py:function"
WORKERS = "worker processes; by default one, or one for each core where a check takes long"
CONVENTION = "intended departures, such as empty_rows=mean,polarity=masked, or angles=float32 of rotary embeddings"


def check(
    target: Annotated[str, typer.Argument(help="package.module:callable or path/to/file.py:callable")],
    operation: Annotated[str, typer.Option(help=OPERATION, autocompletion=complete_names(operation_names))],
    arrays: Annotated[str | None, typer.Option(help=ARRAYS, autocompletion=complete_names(array_names))] = None,
    device: Device = "cpu",
    dtypes: Annotated[str | None, declaration_option(DTYPES, lambda: FLOATING)] = None,
    supports: Annotated[str | None, declaration_option(SUPPORTS, support_names)] = None,
    layout: Annotated[str | None, declaration_option(LAYOUT, lambda: ("BHTD", "BTHD"))] = None,
    width_multiple: Annotated[int | None, declaration_option("every width must be a multiple of this", min=1)] = None,
    tile: Tile = None,
    head_widths: HeadWidths = None,
    windows: Windows = None,
    limits: Limits = None,
    convention: Annotated[list[str] | None, declaration_option(CONVENTION, convention_names)] = None,
    vjp: Annotated[str | None, typer.Option(help=VJP)] = None,
    profile: Profile = DEFAULT,
    effort: Effort = "default",
    seed: Seed = None,
    rule: Annotated[list[str] | None, typer.Option(help=RULE, autocompletion=complete_names(rule_names))] = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds for one case; 30 by default", min=0.01)] = None,
    isolate: Isolate = None,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="do not make failing cases smaller")] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS, min=1)] = None,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
    replays: Annotated[Path, typer.Option(help="folder for replay files", rich_help_panel=REPORTS)] = Path(
        "conformance-replays"
    ),
) -> None:
    """Judge a function by the rules of an operation.

    Exit code 0: it conforms. 1: it violates a rule that the profile asks for. 2: the judge could not finish. 130:
    interrupted.
    """
    from conformance.reports.tables import subject_report

    given: dict[str, Any] = {"arrays": arrays, "device": device, "dtypes": dtypes, "supports": supports}
    given |= {"layout": layout, "width_multiple": width_multiple, "effort": effort, "seed": seed}
    given |= {"rules": rule, "isolate": isolate, "shrink": not no_shrink, "profile": profile}
    given |= {"tile": tile, "head_widths": head_widths, "windows": windows, "limits": limits}
    given |= {"vjp": vjp, "workers": workers}
    if workers != 1:  # threads that have nothing to do must not take the cores of other processes
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given |= {} if time_limit is None else {"time_limit": time_limit}
    report = judge_target(target, operation, convention or [], given, replays)
    for subject in report["subjects"]:
        console.print(subject_report(subject, report["seed"]), crop=False)
    if report["error"] is not None:
        how = "not judged to the end" if report["subjects"] else "not judged"
        console.print(Text(f"{how}: {report['error']}", style="red"))
    save_report(report, {"json": json, "junit": junit, "html": html})
    if report["error"] == INTERRUPTED:
        raise typer.Exit(130)
    raise typer.Exit(2 if report["error"] is not None else 0 if report["conforms"] else 1)


def judge_target(
    target: str, operation: str, convention: list[str], given: dict[str, Any], replays: Path
) -> dict[str, Any]:
    """Return the report. If the judge cannot finish, it holds the error and the results until then."""
    from conformance.judge import checking
    from conformance.reports.content import document

    found: list[Report] = []
    error, told = None, {"seed": given["seed"], "effort": given["effort"]}
    try:
        known_usage(operation, given)
        given = given | {"conventions": conventions_of(convention) or None, "tile": tile_of(given["tile"])}
        given |= {"head_widths": head_widths_of(given["head_widths"]), "limits": limits_of(given["limits"])}
        given |= {"windows": windows_of(given["windows"])}
        examples = checking.EFFORTS.get(given["effort"], 0)
        with bar("loading", steps(operation, given["rules"], examples), errors) as advance:
            found.append(checking.check(target, operation, progress=advance, unfinished=found.append, **given))
    except KeyboardInterrupt:
        error = INTERRUPTED
    except Exception as raised:
        error = explain_error(raised)
    if not found:
        return document("check", [], error=error, **told)
    report = found[0]
    subject, unwritten = save_replays(report, replays)
    told |= {"seed": report.seed, "cases": checking.EFFORTS[report.effort], "seconds": report.seconds}
    return document("check", [subject], error=error or unwritten, **told)


def save_replays(report: Report, replays: Path) -> tuple[dict[str, Any], str | None]:
    """Return the report's part about the subject, and why its replay files could not be written."""
    from conformance.reports.subjects import checked_content

    try:
        return checked_content(report, replays), None
    except OSError as error:
        unwritten = f"replay files cannot be written to {replays}: {error.strerror or error}"
        return checked_content(report, None), unwritten


def known_usage(operation: str, given: dict[str, Any]) -> None:
    """Raise ValueError for wrong arguments that `check` itself does not refuse."""
    from conformance.cases.declaration import validate_names
    from conformance.cases.facts import operations
    from conformance.checks.judged_rules import JUDGED
    from conformance.subjects.frameworks import FRAMEWORKS

    validate_names("operation", [operation], operations())
    validate_names("arrays", [given["arrays"] or "numpy"], FRAMEWORKS)
    validate_names("device", [given["device"]], ("cpu", "cuda"))
    validate_names("rule", given["rules"] or [], JUDGED)
    validate_names("profile", [given["profile"]], LEVELS)
    if given["device"] == "cuda" and given["arrays"] == "torch":
        from conformance.cli.run import gpu_available

        if not gpu_available():
            raise ValueError("device: PyTorch sees no GPU")


def steps(operation: str, rules: list[str] | None, examples: int) -> int:
    """Return about how many cases the check has."""
    from conformance.judge.plan import count_cases
    from conformance.operations.probes import probes_of_all

    chosen = [
        probe
        for probe in probes_of_all(operation)
        if probe.operations == (operation,) and (not rules or probe.rule in rules)
    ]
    return sum(count_cases(probe, examples) for probe in chosen)
