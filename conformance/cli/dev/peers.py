"""`conformance dev peers`: judge what is installed, and print the divergence matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console


def peers(
    only: Annotated[
        list[str] | None, typer.Argument(help="parts of names; all peers that are not slow if none")
    ] = None,
    effort: Annotated[str, typer.Option(help="quick, default or thorough: how many cases for each probe")] = "default",
    seed: Annotated[int, typer.Option(help="draws the same cases again")] = 0,
    markdown: Annotated[Path | None, typer.Option(help="a file for the same as Markdown")] = None,
) -> None:
    """Judge what is installed, path by path, and print what each of them does otherwise than the definition."""
    from conformance.peers.markdown import as_page
    from conformance.peers.matrix import matrix
    from conformance.peers.terminal import as_table

    reports = matrix(effort, seed, only or (), say=console.print)
    console.print(as_table(reports))
    if markdown is not None:
        markdown.write_text(as_page(reports))
