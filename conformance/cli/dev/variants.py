"""`conformance dev variants`: judge every honest variant; the judge must find no violation."""

from __future__ import annotations

import importlib.util
import secrets
from typing import Annotated

import typer
from rich.table import Table

from conformance.checks.results import Results
from conformance.cli.console import console
from conformance.cli.options import CORES, Effort, Seed, Workers
from conformance.reports.tables import right, violation_lines
from conformance.selftest.variants import VARIANTS
from conformance.selftest.variants.judging import choose_variants, runs


def variants(
    effort: Effort = "default",
    repeat: Annotated[int, typer.Option(help="number of runs, each with the next seed", min=1)] = 1,
    seed: Seed = None,
    only: Annotated[list[str] | None, typer.Option(help="a word in the title; may be repeated")] = None,
    jax: Annotated[bool, typer.Option(help="also judge variants in JAX, which compiles for every new shape")] = True,
    workers: Workers = CORES,
) -> None:
    """Judge implementations that are right but written differently, and print any violations."""
    wanted = ("numpy", "torch", "jax") if jax else ("numpy", "torch")
    arrays = [name for name in wanted if importlib.util.find_spec(name) is not None]
    indices = choose_variants(arrays, only or ())
    first = secrets.randbelow(2**32) if seed is None else seed
    total, failures = Results(), 0
    for number, results in enumerate(runs(indices, effort, range(first, first + repeat), workers), first):
        total.include(results)
        failures += not results.conforms
        console.print(f"seed {number}: {'conform' if results.conforms else 'violations'}")
        console.print(*map(violation_lines, results.violations.values()), sep="\n", end="")
    console.print(table(total, indices))
    console.print(f"{repeat} run{'s' * (repeat > 1)}, {failures} with violations")
    raise typer.Exit(1 if failures else 0)


def table(results: Results, indices: list[int]) -> Table:
    title = "Largest error ratio: in float32 and float64, and in all dtypes"
    columns = right("wide", "all", "cases")
    made = Table("operation", "variant", "arrays", *columns, title=title, title_justify="left")
    for variant in (VARIANTS[index] for index in indices):
        cells = [cell for (_, name), cell in results.rules.items() if name == variant.title]
        errors = (max(cell.wide for cell in cells), max(cell.worst for cell in cells))
        count = sum(cell.cases for cell in cells)
        shown = (f"{error:.2f}" if error >= 0 else "-" for error in errors)
        made.add_row(variant.operation, variant.name, variant.arrays, *shown, str(count))
    return made
