"""`conformance dev detection-probability`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console


def detection_probability(
    cases: Annotated[int | None, typer.Option(help="cases for each probe, or for each row of its plan", min=2)] = None,
    seed: Annotated[int | None, typer.Option(help="generate the same cases again", min=0)] = None,
    only: Annotated[list[str] | None, typer.Option(help="a rule or a fault; may be repeated")] = None,
) -> None:
    """Estimate for every planted fault the probability that a run misses it."""
    from conformance.runner.workers import prepare_worker
    from conformance.selftest.detection_probability import CASES, SEED, detection_table, measure

    prepare_worker()
    detections = list(measure(only, cases or CASES, SEED if seed is None else seed))
    Console(width=140, markup=False).print(detection_table(detections))
