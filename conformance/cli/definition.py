"""`conformance definition`."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Annotated

import typer

from conformance.cli.console import bar, console, exit_interrupted, refuse
from conformance.cli.options import CORES, Seed, Workers


def definition(
    cases: Annotated[int, typer.Option(help="test cases for each operation", min=1)] = 1000,
    seed: Seed = None,
    workers: Workers = CORES,
) -> None:
    """Judge the definition itself by ball arithmetic, which shares no code with it."""
    from conformance.judge.batches import ImplementationPool
    from conformance.operations import OPERATIONS
    from conformance.oracle.reference import balls_available
    from conformance.reports.tables import results_table, violation_lines

    if not balls_available():
        refuse("ball arithmetic needs python-flint, which is not installed")
    seed = secrets.randbelow(2**32) if seed is None else seed
    try:
        with (
            closing(ImplementationPool(["reference_numpy"], workers)) as pool,
            bar("ball arithmetic", len(OPERATIONS)) as advance,
        ):
            results = pool.run_definition(cases, seed, advance)
    except KeyboardInterrupt:
        exit_interrupted()
    console.print(results_table(results, ["reference_numpy"]), *map(violation_lines, results.violations.values()))
    console.print(f"seed {seed}, {cases} cases of each operation: {'conforms' if results.conforms else 'violations'}")
    raise typer.Exit(0 if results.conforms else 1)
