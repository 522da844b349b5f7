"""`conformance selftest`."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.options import CORES, Effort, Seed, Workers


def selftest(
    effort: Effort = "default",
    seed: Seed = None,
    workers: Workers = CORES,
    only: Annotated[list[str] | None, typer.Option(help="a rule, or words in a name; may be repeated")] = None,
    names: Annotated[bool, typer.Option("--names", help="check that each known mistake is named, too")] = False,
) -> None:
    """Judge every planted mistake and behaviour, and check that its own rule catches it."""
    if names:
        from conformance.selftest.names import main
    else:
        from conformance.selftest.selftest import main

    raise typer.Exit(main(effort, seed, workers, only))
