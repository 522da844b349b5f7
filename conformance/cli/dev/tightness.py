"""`conformance dev tightness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from conformance.cases.declaration import validate_names
from conformance.operations import OPERATIONS
from conformance.oracle.reference import balls_available
from conformance.selftest import sensitivity
from conformance.selftest import tightness as measuring

MARKDOWN = "write both tables to this file; with --operation or --dtype only these figures of it are renewed"


def tightness(
    seconds: Annotated[float, typer.Option(help="processor time for each group and dtype, in seconds")] = 900.0,
    cases: Annotated[int | None, typer.Option(help="first cases; the search improves half of them", min=2)] = None,
    operation: Annotated[list[str] | None, typer.Option(help="may be repeated; all by default")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="may be repeated; all by default")] = None,
    jax: Annotated[bool, typer.Option("--jax", help="also search JAX, which compiles for every new shape")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="measure which small faults the bounds catch")] = False,
    markdown: Annotated[Path | None, typer.Option(help=MARKDOWN)] = None,
) -> None:
    """Search for the largest error ratios of honest implementations."""
    console = Console(width=140, markup=False)
    if faults:
        console.print(sensitivity.sensitivity_table(sensitivity.measure()))
        return
    try:
        validate_names("operation", operation or (), OPERATIONS)
        validate_names("dtype", dtype or (), measuring.DTYPES)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    dtypes = [d for d in dtype or measuring.DTYPES if d != "float64" or balls_available()]
    found = measuring.measure(seconds, operation or OPERATIONS, dtypes, cases or measuring.CASES, jax)
    console.print(measuring.tightness_table(found))
    low, high = measuring.WANTED
    console.print(f"{len(found.unwanted)} figures are outside {low:g} to {high:g}.")
    if markdown is not None:
        some = bool(operation or dtype) and markdown.exists()
        old = markdown.read_text() if some else ""
        page = measuring.renew_page(old, found) if some else measuring.page(found, sensitivity.measure())
        markdown.write_text(page)
