"""`conformance selftest`."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.options import CORES, Effort, Seed, Workers


def selftest(
    effort: Effort = "default",
    seed: Seed = None,
    workers: Workers = CORES,
    only: Annotated[list[str] | None, typer.Option(help="a rule or a fault; may be repeated")] = None,
) -> None:
    """Judge every planted fault, and check that its own rule catches it."""
    from conformance.selftest.selftest import main

    raise typer.Exit(main(effort, seed, workers, only))
