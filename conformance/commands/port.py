"""`conformance port`: does a checkpoint compute the same in all three packages?"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from conformance.commands.console import console, refuse
from conformance.commands.options import Seed

Settings = Annotated[list[str] | None, typer.Option("--set", help="a hyperparameter, such as num_heads=12")]


def port(
    checkpoint: Annotated[Path, typer.Argument(help="a safetensors file")],
    dialect: Annotated[str, typer.Option(help="whose names the checkpoint has")],
    settings: Settings = None,
    seed: Seed = 0,
) -> None:
    """Map a checkpoint, and judge every step of it in all three packages on a probe input.

    Exit code 0: all steps keep their bounds; 1: one does not; 2: the checkpoint cannot be read or does not fit.
    """
    from conformance.models.agreement import agreement, probe_inputs
    from conformance.reports.models import parameters_table, steps_table

    parameters, configuration = read_checkpoint(checkpoint, dialect, settings)
    console.print(parameters_table(parameters))
    packages = packages_here()
    found = agreement(parameters, configuration, probe_inputs(parameters, seed or 0), {}, packages)
    console.print(steps_table(found, packages))
    beyond = found.first_beyond
    if beyond is None:
        console.print(Text(f"every step keeps its bound in {', '.join(packages)}", style="bold green"))
    else:
        console.print(Text(f"the first error beyond its bound: {beyond[1]} in {beyond[0]}", style="bold red"))
    raise typer.Exit(0 if beyond is None else 1)


def read_checkpoint(checkpoint: Path, dialect: str, settings: list[str] | None) -> tuple[Any, Any]:
    """Parameters of NumPy arrays, and the configuration; what was widened is told."""
    from specification.dialects import read

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = read(dialect, checkpoint, **hyperparameters(settings or []))
    except (OSError, TypeError, ValueError) as error:
        refuse(str(error))
    for warning in caught:
        console.print(Text(str(warning.message)))
    return found


def hyperparameters(settings: list[str]) -> dict[str, Any]:
    """ "num_heads=12" as a number, "norm_first=true" as a truth value, everything else as text."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, given, value = setting.partition("=")
        if not given:
            raise ValueError(f"--set takes name=value, got {setting!r}")
        found[name] = literal(value)
    return found


def literal(value: str) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(value.lower(), value)


def packages_here() -> list[str]:
    from conformance.commands.run import FRAMEWORKS, available

    return [package for package in FRAMEWORKS if available(package)]
