"""`conformance dev peers`: judge the installed libraries, and print the divergence matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console
from conformance.cli.options import Effort
from conformance.peers import found, rows
from conformance.peers.markdown import format_page
from conformance.peers.matrix import judge_peers
from conformance.peers.terminal import render_rows

ONLY = "parts of names; by default all peers that are not slow"
MARKDOWN = "write the matrix to this file, a JSON file and found.md beside it; rows there of peers not judged now stay"


def peers(
    only: Annotated[list[str] | None, typer.Argument(help=ONLY)] = None,
    effort: Effort = "default",
    seed: Annotated[int, typer.Option(help="generate the same cases again")] = 0,
    markdown: Annotated[Path | None, typer.Option(help=MARKDOWN)] = None,
) -> None:
    """Judge the installed libraries, and print where each departs from the definition."""
    stored = None if markdown is None else markdown.with_suffix(".json")
    try:
        before = rows.read(stored) if stored is not None and stored.exists() else []
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    judged: list[rows.Row] = []
    if markdown is not None:
        markdown.with_name("found.md").write_text(found.format_found(found.read_bugs()), encoding="utf-8")
    for report in judge_peers(effort, seed, only or (), say=console.print):
        judged += rows.rows_of([report])
        if markdown is not None and stored is not None:  # after every row, so that a run that is broken off keeps them
            every = rows.renew_rows(before, judged)
            rows.write(every, stored)
            markdown.write_text(format_page(every), encoding="utf-8")
    console.print(render_rows(judged))
