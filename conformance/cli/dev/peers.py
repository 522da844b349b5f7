"""`conformance dev peers`: judge the installed libraries, and print the divergence matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console


def peers(
    only: Annotated[
        list[str] | None, typer.Argument(help="parts of names; by default all peers that are not slow")
    ] = None,
    effort: Annotated[str, typer.Option(help="how many cases each probe gets: quick, default or thorough")] = "default",
    seed: Annotated[int, typer.Option(help="generate the same cases again")] = 0,
    markdown: Annotated[Path | None, typer.Option(help="also write the matrix to this file, as Markdown")] = None,
) -> None:
    """Judge the installed libraries, and print where each departs from the definition."""
    from conformance.peers.markdown import as_page
    from conformance.peers.matrix import matrix
    from conformance.peers.terminal import as_table

    reports = matrix(effort, seed, only or (), say=console.print)
    console.print(as_table(reports))
    if markdown is not None:
        markdown.write_text(as_page(reports))
