"""`conformance port`: does a checkpoint compute the same in all three packages?"""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from conformance.cli.console import console, refuse

if TYPE_CHECKING:
    from conformance.models.agreement import Agreement, StepAgreement

Settings = Annotated[list[str] | None, typer.Option("--set", help="a hyperparameter, such as num_heads=12")]


def port(
    checkpoint: Annotated[Path, typer.Argument(help="a safetensors file")],
    dialect: Annotated[str, typer.Option(help="whose names the checkpoint has")],
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="of the probe input", min=0)] = 0,
) -> None:
    """Map a checkpoint, and judge it in all three packages on a probe input: every step, and the whole.

    Each package is compared with the definition, reference_numpy in float64; not with the library or the code that the
    checkpoint comes from. Entries that belong to no part of the model that is read are named. The probe is a batch of
    sequences of differing lengths, padded and masked as such a model meets them. Exit code 0: all steps and all results
    keep their bounds; 1: one does not; 2: the checkpoint cannot be read or does not fit, or there are NaN or infinities
    in it, because of which not all could be judged.
    """
    from conformance.models.agreement import agreement, end_to_end
    from conformance.models.probing import probe
    from conformance.reports.models import parameters_table, probe_line, steps_table
    from specification.parameters import mapped

    unread: list[str] = []
    parameters, configuration = read_checkpoint(checkpoint, dialect, settings, unread)
    console.print(parameters_table(parameters))
    if unread:
        console.print(Text(f"in the file, and no part of what dialect {dialect} computes: {', '.join(unread)}"))
    packages = packages_here()
    inputs, options = probe(parameters, configuration, seed)
    console.print(Text(probe_line(inputs, options)))
    found = agreement(parameters, configuration, inputs, options, packages)
    wholes = []
    for dtype in dict.fromkeys((found.oracle.dtype, "float64")):
        models = loaded(checkpoint, dialect, settings, packages, dtype)
        cast = mapped(partial(np.ndarray.astype, dtype=dtype), parameters)
        wholes.append(end_to_end(models, cast, configuration, inputs, options))
    console.print(steps_table(found, packages, wholes))
    conforms = [tell_steps(found, packages), *map(tell_whole, wholes)]
    judged = tell_hollow([*found.hollow, *(whole.name for whole in wholes if not whole.judged)])
    raise typer.Exit(1 if not all(conforms) else 0 if judged else 2)


def tell_steps(found: Agreement, packages: list[str]) -> bool:
    """Whether every step keeps its bound, and which is the first that does not."""
    from conformance.models.agreement import compared

    beyond = found.first_beyond
    if beyond is None:
        style = "" if found.hollow else "bold green"
        kept = "every step that can be judged" if found.hollow else "every step"
        told = ", ".join(compared(packages, found.oracle.dtype))
        console.print(Text(f"{kept} keeps its bound in {told or 'no package but the definition'}", style=style))
    else:
        console.print(Text(f"the first error beyond its bound: {beyond[1]} in {beyond[0]}", style="bold red"))
    return beyond is None


def tell_whole(whole: StepAgreement) -> bool:
    """Whether what the models give when they are called keeps the carried bound."""
    if not whole.ratios or not whole.judged:
        return all(ratio <= 1 for ratio in whole.ratios.values())
    told = ", ".join(f"{package} {ratio:.3g}" for package, ratio in whole.ratios.items())
    beyond = [package for package, ratio in whole.ratios.items() if not ratio <= 1]
    verdict = f"beyond it: {', '.join(beyond)}" if beyond else "all keep it"
    line = f"{whole.name}, each model as it is called, from the definition, in carried bounds: {told}; {verdict}"
    console.print(Text(line, style="bold red" if beyond else "bold green"))
    return not beyond


def tell_hollow(steps: list[str]) -> bool:
    """Whether every step, and the whole, could be judged in full."""
    if steps:
        count = "1 step gives" if len(steps) == 1 else f"{len(steps)} steps give"
        first, more = steps[0], f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        told = f"{count} NaN or infinities, because of which not all could be judged: {first}{more}"
        console.print(Text(told, style="bold red"))
    return not steps


def loaded(
    checkpoint: Path, dialect: str, settings: list[str] | None, packages: list[str], dtype: str
) -> dict[str, Any]:
    """The model of every package, by its own `load`: of the file as it is, or widened to float64."""
    from conformance.models.local import cast
    from conformance.models.stepwise import framework_of
    from specification.checkpoints import read_safetensors

    given: Any = checkpoint
    if dtype == "float64":
        given = {name: cast(array, dtype) for name, array in read_safetensors(checkpoint)[0].items()}
    models = {}
    for package in packages:
        with warnings.catch_warnings(), framework_of(package).context():
            warnings.simplefilter("ignore")  # told once, by `read_checkpoint`
            models[package] = importlib.import_module(package).load(dialect, given, **hyperparameters(settings or []))
    return models


def read_checkpoint(
    checkpoint: Path, dialect: str, settings: list[str] | None, unread: list[str] | None = None
) -> tuple[Any, Any]:
    """Parameters of NumPy arrays, and the configuration; what was widened is told.

    unread: is given the names of entries that belong to no part of the model.
    """
    from specification.dialects import read
    from specification.loading.reader import UNREAD

    listening = UNREAD.set(unread)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = read(dialect, checkpoint, **hyperparameters(settings or []))
    except (OSError, TypeError, ValueError) as error:
        refuse(str(error))
    finally:
        UNREAD.reset(listening)
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
        if name in found:
            raise ValueError(f"--set gives {name} twice")
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
    from conformance.cli.run import FRAMEWORKS, available

    return [package for package in FRAMEWORKS if available(package)]
