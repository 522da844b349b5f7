"""`conformance compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from conformance.cli.console import console, refuse

STYLES = {"worse": "bold red", "better": "green", "other": ""}


def compare(
    before: Annotated[Path, typer.Argument(help="an earlier report, written by --json", metavar="A.json")],
    after: Annotated[Path, typer.Argument(help="a later report", metavar="B.json")],
) -> None:
    """Compare two reports. Exit code 1 if anything got worse. A larger error within its bound is not worse."""
    from conformance.reports.comparison import changes, circumstances, read_report

    try:
        old, new = read_report(before), read_report(after)
        differing, found = circumstances(old, new), changes(old, new)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        refuse(str(error) if type(error) is ValueError else f"not a report of this schema: {error!r}")
    for line in differing:
        console.print(Text(line, style="dim"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for change in found:
        table.add_row(*(Text(text, style=STYLES[change.kind]) for text in (change.subject, change.rule, change.text)))
    if found:
        console.print(table)
    worse = sum(change.kind == "worse" for change in found)
    console.print(f"{len(found)} change{'s' * (len(found) != 1)}, {worse} for the worse")
    raise typer.Exit(1 if worse else 0)
