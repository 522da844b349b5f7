"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.cases.declaration import CONVENTIONS, DIMENSIONS, FEATURES
from conformance.checks.levels import LEVELS

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


def array_names() -> Iterable[str]:
    from conformance.subjects.frameworks import FRAMEWORKS

    return FRAMEWORKS


def effort_names() -> Iterable[str]:
    from conformance.judge.plan import EFFORTS

    return EFFORTS


def rule_names() -> Iterable[str]:
    from conformance.checks.judged_rules import JUDGED

    return JUDGED


def support_names() -> Iterable[str]:
    return [*FEATURES, *(f"no-{name}" for name in FEATURES)]


def convention_names() -> Iterable[str]:
    return [f"{name}={value}" for name, values in CONVENTIONS.items() for value in values]


REPORTS = "Reports"
DECLARATIONS = "What the function supports, and departs from on purpose"
"""Panels of the help."""


def declaration_option(what: str, names: Callable[[], Iterable[str]] = tuple, **options: Any) -> Any:
    """Return an option that declares something of the implementation under test."""
    return typer.Option(help=what, autocompletion=complete_names(names), rich_help_panel=DECLARATIONS, **options)


def report(option: str, what: str) -> Any:
    """Return an option that names the file of a report."""
    return typer.Option(option, help=what, metavar="FILE", rich_help_panel=REPORTS)


Json = Annotated[Path | None, report("--json", "write the report to this file")]
Junit = Annotated[Path | None, report("--junit", "write a JUnit XML file too")]
Html = Annotated[Path | None, report("--html", "write an HTML page too")]
EFFORT = "how many cases each probe gets: quick, default or thorough"
Effort = Annotated[str, typer.Option(help=EFFORT, autocompletion=complete_names(effort_names))]
DEVICE = "cpu or cuda; NumPy stays on the CPU"
Device = Annotated[str, typer.Option(help=DEVICE, autocompletion=complete_names(lambda: ("cpu", "cuda")))]
Seed = Annotated[int | None, typer.Option(help="generate the same cases again; by default a fresh seed", min=0)]
PROFILE = "what decides the exit code: core, robust or strict"
Profile = Annotated[str, typer.Option(help=PROFILE, autocompletion=complete_names(lambda: LEVELS))]
ISOLATE = "call the function in a subprocess (the default), which may crash or hang, or in this process"
Isolate = Annotated[bool | None, typer.Option("--isolate/--in-process", help=ISOLATE, show_default=False)]
Workers = Annotated[int, typer.Option(help="worker processes", min=1)]


def conventions_of(given: Iterable[str]) -> dict[str, str]:
    """Read "empty_rows=mean,polarity=masked" as a dictionary; raise ValueError for a name without a value."""
    found = {}
    for part in (part.strip() for text in given for part in text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"convention must be name=value, got {part!r}")
        found[name.strip()] = value.strip()
    return found


Tile = Annotated[
    str | None, declaration_option("its tiles of queries and keys, such as 128x64; adds sizes around them")
]
HEAD_WIDTHS = "it supports only heads of these widths, such as 64,128,576/512 (keys/values)"
HeadWidths = Annotated[str | None, declaration_option(HEAD_WIDTHS)]
WINDOWS = "its windows have only these numbers of keys before and after the query's own, such as 31/0,63/all"
Windows = Annotated[str | None, declaration_option(WINDOWS)]
LIMITS = "largest sizes that it supports, such as keys=4096,key_width=128"
Limits = Annotated[str | None, declaration_option(LIMITS, lambda: [f"{name}=" for name in DIMENSIONS])]


def tile_of(given: str | None) -> tuple[int, int] | None:
    """Read "128x64" as (128, 64); raise ValueError for anything else."""
    if given is None:
        return None
    queries, cross, keys = given.partition("x")
    if not cross or not queries.isdecimal() or not keys.isdecimal():
        raise ValueError(f"tile must be QUERIESxKEYS, such as 128x64, got {given!r}")
    return int(queries), int(keys)


def head_widths_of(given: str | None) -> list[tuple[int, int]] | None:
    """Read "64,576/512" as [(64, 64), (576, 512)]; raise ValueError for anything else."""
    if given is None:
        return None
    pairs = [part.strip().partition("/") for part in given.split(",")]
    for width, cross, value in pairs:
        if not width.isdecimal() or not (value.isdecimal() if cross else not value):
            raise ValueError(f"head widths must be numbers or KEY/VALUE, such as 64,128,576/512, got {given!r}")
    return [(int(width), int(value or width)) for width, _, value in pairs]


def windows_of(given: str | None) -> list[tuple[int | None, int | None]] | None:
    """Read "31/0,63/all" as [(31, 0), (63, None)]; raise ValueError for anything else."""
    if given is None:
        return None
    pairs = [part.strip().partition("/") for part in given.split(",")]
    if not all(side.isdecimal() or side == "all" for before, _, after in pairs for side in (before, after)):
        raise ValueError(f"windows must be BEFORE/AFTER, numbers of keys or all, such as 31/0, got {given!r}")
    return [(keys_beside(before), keys_beside(after)) for before, _, after in pairs]


def keys_beside(side: str) -> int | None:
    return None if side == "all" else int(side)


def limits_of(given: str | None) -> dict[str, int] | None:
    """Read "keys=4096,heads=32" as a dictionary; raise ValueError for anything else."""
    if given is None:
        return None
    pairs = [part.strip().partition("=") for part in given.split(",")]
    for name, _, size in pairs:
        if not size.isdecimal():
            raise ValueError(f"limits must be name=number, such as keys=4096, got {name!r}")
    return {name: int(size) for name, _, size in pairs}
