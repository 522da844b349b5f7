"""`conformance dev tightness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def tightness(
    seconds: Annotated[float, typer.Option(help="of processor time, for each group and dtype")] = 900.0,
    cases: Annotated[int | None, typer.Option(help="to begin with, of which half climb", min=2)] = None,
    operation: Annotated[list[str] | None, typer.Option(help="may be given again; all unless given")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="may be given again; all unless given")] = None,
    jax: Annotated[bool, typer.Option("--jax", help="JAX too, which compiles for every new shape")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="what the bounds catch, not how tight they are")] = False,
    markdown: Annotated[Path | None, typer.Option(help="a file for both tables")] = None,
) -> None:
    """Search for the largest errors of honest implementations, in units of their bounds."""
    from conformance.cases.declaration import known
    from conformance.oracle.reference import balls_available
    from conformance.sampling.strategies import OPERATIONS
    from conformance.selftest import sensitivity
    from conformance.selftest import tightness as measuring

    console = Console(width=140, markup=False)
    if faults:
        console.print(sensitivity.sensitivity_table(sensitivity.measure()))
        return
    try:
        known("operation", operation or (), OPERATIONS)
        known("dtype", dtype or (), measuring.DTYPES)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    dtypes = [d for d in dtype or measuring.DTYPES if d != "float64" or balls_available()]
    found = measuring.measure(seconds, operation or OPERATIONS, dtypes, cases or measuring.CASES, jax)
    console.print(measuring.tightness_table(found))
    low, high = measuring.WANTED
    console.print(f"{len(found.unwanted)} figures are outside {low:g} to {high:g}.")
    if markdown is not None:
        markdown.write_text(measuring.page(found, sensitivity.measure()))
