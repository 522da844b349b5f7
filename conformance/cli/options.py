"""Options of commands: those that several commands share, and those that are written down with what they declare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.cases.declaration import DeclarationOptions
from conformance.cases.options import Function, options_of, set_parameters
from conformance.judge.options import MODEL_ALONE, list_options

CORES = min(os.cpu_count() or 1, 4)
Completion = Callable[[str], list[str]]
"""What a shell offers for the beginning of a value."""


def complete_names(names: Callable[[], Iterable[str]]) -> Completion:
    """Return a completion by these names, which are looked up only then; after a comma, by one more of them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def operation_names() -> Iterable[str]:
    from conformance.cases.facts import operations

    return operations()


REPORTS = "Reports"
DECLARATIONS = "What the function supports, and departs from on purpose"
MODELS = "Ports of models"
"""Panels of the help."""


def option(name: str) -> Any:
    one = list_options()[name]
    return typer.Option(
        "/".join(f"--{spelling}" for spelling in one.spellings(name)),
        help=one.help,
        metavar=None if one.switch else name.upper(),
        autocompletion=None if one.switch else complete_names(one.names),
        rich_help_panel=find_panel(name),
        show_default=one.default is not None,
    )


def find_panel(name: str) -> str | None:
    """Return the panel of the help that an option stands in; None for the first one."""
    if name in MODEL_ALONE:
        return MODELS
    return DECLARATIONS if name in options_of(DeclarationOptions) else None


def take_check_options(command: Function) -> Function:
    """Give a command all options of a check, in place of `**options`; values are strings, or lists of them."""
    fields = []
    for name, one in list_options().items():
        kind: Any = bool if one.switch else list[str] if one.many else str
        fields.append((name, Annotated[kind | None, option(name)], one.default))
    set_parameters(command, fields)
    return command


def report(option: str, what: str) -> Any:
    return typer.Option(option, help=what, metavar="FILE", rich_help_panel=REPORTS)


Json = Annotated[Path | None, report("--json", "write the report to this file")]
Junit = Annotated[Path | None, report("--junit", "write a JUnit XML file too")]
Html = Annotated[Path | None, report("--html", "write an HTML page too")]
Effort = Annotated[str, option("effort")]
Device = Annotated[str, option("device")]
Seed = Annotated[int | None, typer.Option(help=list_options()["seed"].help, min=0)]
Profile = Annotated[str, option("profile")]
Isolate = Annotated[bool | None, option("isolate")]
Conventions = Annotated[list[str] | None, option("conventions")]
Workers = Annotated[int, typer.Option(help="worker processes", min=1)]
