"""`conformance dev engines`."""

from __future__ import annotations

import importlib.util
import secrets
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from conformance.checks.results import Cell
from conformance.cli.console import console
from conformance.cli.options import Effort, Seed
from conformance.judge.report import Report
from conformance.reports.tables import RATIOS, both, right, violation_lines


def engines(
    effort: Effort = "default",
    seed: Seed = None,
    only: Annotated[list[str] | None, typer.Option(help="a word in the title; may be repeated")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
) -> None:
    """Judge every engine of the ports, and print its largest error ratios."""
    from conformance.peers.engines import ENGINES, judge
    from conformance.peers.peer import gpu_of

    first = secrets.randbelow(2**32) if seed is None else seed
    chosen = [e for e in ENGINES if not only or any(word in e.title for word in only)]
    if not chosen:
        console.print(f"no engine has this word in its title; the engines are: {'; '.join(e.title for e in ENGINES)}")
        raise typer.Exit(2)
    columns = right("cases", "rules", "worst", "violations")
    table = Table("engine", *columns, title=f"Engines, seed {first}. {RATIOS}", title_justify="left")
    conforms = True
    for engine in chosen:
        if importlib.util.find_spec(engine.arrays) is None:
            console.print(f"{engine.title} is skipped: {engine.arrays} is not installed")
            continue
        if device == "cuda" and not gpu_of(engine.arrays):
            console.print(f"{engine.title} is skipped: {engine.arrays} sees no GPU")
            continue
        report = judge(engine, effort=effort, seed=first, device=device)
        console.print(*map(violation_lines, report.violations), sep="\n", end="")
        conforms &= report.conforms
        table.add_row(engine.title, *row(report))
    console.print(table)
    raise typer.Exit(0 if conforms else 1)


def row(report: Report) -> list[Text | str]:
    whole = Cell()
    for cell in report.rules.values():
        whole.include(cell)
    return [str(whole.cases), str(len(report.rules)), both(whole), str(len(report.violations))]
