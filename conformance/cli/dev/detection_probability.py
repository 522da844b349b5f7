"""`conformance dev detection-probability`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console


def detection_probability(
    cases: Annotated[int | None, typer.Option(help="for each probe, or each row of a plan", min=2)] = None,
    seed: Annotated[int | None, typer.Option(help="draw the same cases again", min=0)] = None,
    only: Annotated[list[str] | None, typer.Option(help="a rule or a fault; may be given again")] = None,
) -> None:
    """Estimate for every planted fault the chance that no case of a run shows it."""
    from conformance.runner.cores import start
    from conformance.selftest.detection_probability import CASES, SEED, measure, odds_table

    start()
    odds = list(measure(only, cases or CASES, SEED if seed is None else seed))
    Console(width=140, markup=False).print(odds_table(odds))
