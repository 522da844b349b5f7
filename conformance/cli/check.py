"""`conformance check`: judge one function by every rule of an operation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from conformance.cli.console import INTERRUPTED, bar, console, errors, explain_error, refuse, save_and_exit
from conformance.cli.options import REPORTS, Html, Json, Junit, complete_names, operation_names, take_check_options

if TYPE_CHECKING:
    from conformance.judge.report import Report

OPERATION = (
    "what the function computes: attention, layer_norm, ..., or model for a port; by default what its name says; "
    "conformance show NAME --head shows its parameters"
)
WORKERS = "worker processes; by default one, or one for each core where a check takes long"


@take_check_options
def check(
    target: Annotated[str, typer.Argument(help="package.module:callable or path/to/file.py:callable")],
    operation: Annotated[
        str | None, typer.Option(help=OPERATION, autocompletion=complete_names(operation_names))
    ] = None,
    *,
    workers: Annotated[int | None, typer.Option(help=WORKERS, min=1)] = None,
    json: Json = None,
    junit: Junit = None,
    html: Html = None,
    replays: Annotated[Path, typer.Option(help="folder for replay files", rich_help_panel=REPORTS)] = Path(
        "conformance-replays"
    ),
    **options: Any,
) -> None:
    """Judge a function by the rules of an operation.

    An option that takes several values takes them with commas between them, or is repeated.

    Exit code 0: it conforms. 1: it violates a rule that the profile asks for. 2: the judge could not finish. 130:
    interrupted.
    """
    if options.get("ranks"):
        from conformance.runner.ranks import is_launched, serve_launched

        if is_launched() and os.environ["RANK"] != "0":
            serve_launched()
            return
    from conformance.reports.tables import subject_report
    from conformance.subjects.callables import name_operation

    if workers != 1:  # threads that have nothing to do must not take the cores of other processes
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    operation = operation or name_operation(target)
    if not operation and options.get("dialect") is not None:
        operation = "model"
    if not operation:
        from difflib import get_close_matches

        function, known = target.rpartition(":")[2], [*operation_names()]
        near = get_close_matches(function, known, 1)
        meant = (
            f"; did you mean the function {near[0]}, or --operation {near[0]}?" if near else f" of {', '.join(known)}"
        )
        refuse(f"--operation is needed: the name {function} says none{meant}")
    if operation == "model":
        report = judge_port(target, options)
    else:
        report = judge_target(target, operation, workers, drop_model_options(options), replays)
    for subject in report["subjects"]:
        console.print(subject_report(subject, report["seed"]), crop=False)
    if report["error"] is not None:
        how = "not judged to the end" if report["subjects"] else "not judged"
        errors.print(Text(f"{how}: {report['error']}", style="red"), soft_wrap=True)
    save_and_exit(report, {"json": json, "junit": junit, "html": html})


def judge_port(target: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the report about a port of a model. If the judge cannot finish, it holds the error."""
    from conformance.cases.options import options_of
    from conformance.judge import checking
    from conformance.judge.options import CheckOptions, ModelCheckOptions
    from conformance.reports.content import document
    from conformance.reports.ports import model_content

    known = options_of(ModelCheckOptions)
    error, subjects, told = None, list[Any](), {"seed": None, "effort": options["effort"]}
    try:
        meaningless = {name: value for name, value in options.items() if name not in known}
        given = [
            name for name, value in meaningless.items() if value not in (None, options_of(CheckOptions)[name].default)
        ]
        if given:
            raise ValueError(f"{', '.join(given)} means nothing for a model")
        with bar("loading", None, errors) as advance:
            chosen = {name: value for name, value in options.items() if name in known}
            found = checking.check(target, "model", progress=advance, **chosen)
        subjects = [model_content(found)]
        told |= {"seed": found.seed, "seconds": found.seconds}
    except KeyboardInterrupt:
        error = INTERRUPTED
    except Exception as raised:
        error = explain_error(raised)
    return document("check", subjects, error=error, **told)


def drop_model_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an operation; those of models mean nothing for it."""
    from conformance.judge.options import MODEL_ALONE

    given = [name for name in MODEL_ALONE if options.get(name)]
    if given:
        refuse(f"{', '.join(f'--{name}' for name in given)}: for --operation model alone")
    return {name: value for name, value in options.items() if name not in MODEL_ALONE}


def judge_target(
    target: str, operation: str, workers: int | None, options: dict[str, Any], replays: Path
) -> dict[str, Any]:
    """Return the report. If the judge cannot finish, it holds the error and the results until then."""
    from conformance.judge import checking, plan
    from conformance.operations.probes import probes_of_all
    from conformance.reports.content import document
    from conformance.reports.subjects import checked_content

    found: list[Report] = []
    error, told = None, {"seed": None, "effort": options["effort"]}
    try:
        _, chosen = checking.read_target(target, operation, None, options)
        told["seed"] = chosen.get("seed")
        probes = [one for one in probes_of_all(operation) if not chosen.get("rules") or one.rule in chosen["rules"]]
        total = sum(plan.count_cases(probe, checking.EFFORTS[chosen["effort"]]) for probe in probes)
        with bar("loading", total, errors) as advance:
            more: dict[str, Any] = {"workers": workers, "progress": advance, "unfinished": found.append}
            found.append(checking.check(target, operation, **more, **options))
    except KeyboardInterrupt:
        error = INTERRUPTED
    except Exception as raised:
        error = explain_error(raised)
    if not found:
        return document("check", [], error=error, **told)
    report = found[0]
    try:
        subject = checked_content(report, replays)
    except OSError as raised:
        error = error or f"replay files cannot be written to {replays}: {raised.strerror or raised}"
        subject = checked_content(report, None)
    told |= {"seed": report.seed, "cases": checking.EFFORTS[report.effort], "seconds": report.seconds}
    return document("check", [subject], error=error, **told)
