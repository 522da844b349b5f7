"""`conformance port`: judge a checkpoint's model in all three packages."""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from conformance.cli.console import console, refuse, save_steps
from conformance.cli.options import Json

if TYPE_CHECKING:
    from conformance.models.agreement import Agreement, StepAgreement

CHECKPOINT = "a safetensors file, or a folder of Hugging Face's with config.json"
Settings = Annotated[list[str] | None, typer.Option("--set", help="a hyperparameter, such as num_heads=12")]
FAMILY = "the model family whose parameter names a file uses; the config.json of a folder says it"
Family = Annotated[str | None, typer.Option("--dialect", help=FAMILY)]


def port(
    checkpoint: Annotated[Path | None, typer.Argument(help=CHECKPOINT, show_default="all-MiniLM-L6-v2")] = None,
    dialect: Family = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="seed of the generated input", min=0)] = 0,
    json: Json = None,
) -> None:
    """Load a checkpoint in all three packages, and judge every step and the whole model on a generated input.

    A file needs --dialect, and --set for its hyperparameters. A folder with a config.json needs neither.

    The judge compares each package with the definition, reference_numpy in float64. It does not compare them with the
    library that the checkpoint comes from. To judge your own port, use conformance trace --against.

    The input is a batch of sequences of different lengths, with padding and masks. The command lists entries of the
    file that the model does not use.

    Exit code 0: all steps and results keep their bounds. 1: one does not. 2: the checkpoint cannot be read or does not
    fit, or NaN or infinities kept the judge from some steps.
    """
    from conformance.models.agreement import agreement, end_to_end
    from conformance.models.probing import probe
    from conformance.models.structures import widen_parameters
    from conformance.reports.models import parameters_table, probe_line, steps_content, steps_table
    from conformance.reports.narrow import fitting
    from specification.dialects import dialect_of_folder
    from specification.loading.reader import first_few
    from specification.parameters import mapped

    unread: list[str] = []
    checkpoint = checkpoint or find_minilm()
    parameters, configuration = read_checkpoint(checkpoint, dialect, settings, unread)
    name = dialect or dialect_of_folder(checkpoint).name
    console.print(parameters_table(parameters))
    if unread:
        console.print(Text(f"entries that dialect {name} does not use: {', '.join(first_few(unread))}"))
    packages = packages_here()
    inputs, options = probe(parameters, configuration, seed)
    console.print(Text(probe_line(inputs, options)))
    found = agreement(parameters, configuration, inputs, options, packages)
    wholes = []
    for dtype in dict.fromkeys((found.oracle.dtype, "float64")):
        models = load_models(checkpoint, dialect, settings, packages, dtype)
        cast = mapped(partial(np.ndarray.astype, dtype=dtype), parameters)
        wholes.append(end_to_end(models, cast, configuration, inputs, options))
    if found.first_beyond is None and not all(ratio <= 1 for whole in wholes for ratio in whole.ratios.values()):
        # Bounds for float64 are 2^29 times smaller: they show a step that those for float32 excuse.
        wide = agreement(widen_parameters(parameters), configuration, inputs, options, packages)
        found = found if wide.first_beyond is None else wide
    console.print(fitting(steps_table(found, packages, wholes), console))
    conforms = [tell_steps(found, packages), *map(tell_whole, wholes)]
    if json is not None:
        told: dict[str, Any] = {"command": "port", "checkpoint": str(checkpoint), "dialect": name}
        told |= {"settings": settings or [], "seed": seed, "unread": unread}
        save_steps(json, steps_content(found, packages, wholes, **told))
    judged = tell_unjudged([*found.unjudged, *(whole.name for whole in wholes if not whole.judged)])
    raise typer.Exit(1 if not all(conforms) else 0 if judged else 2)


def find_minilm() -> Path:
    from conformance.models.minilm import find_folder

    try:
        return find_folder()
    except ValueError as error:
        refuse(f"{error}; name a checkpoint instead")


def tell_steps(found: Agreement, packages: list[str]) -> bool:
    """Print whether every step keeps its bound, or the first that does not; return the former."""
    from conformance.models.agreement import comparable_packages

    if beyond := found.first_beyond:
        console.print(Text(f"the first error beyond its bound: {beyond[1]} in {beyond[0]}", style="bold red"))
        return False
    kept, style = ("every step that can be judged", "") if found.unjudged else ("every step", "bold green")
    told = ", ".join(comparable_packages(packages, found.oracle.dtype))
    console.print(Text(f"{kept} keeps its bound in {told or 'no package other than the definition'}", style=style))
    return True


def tell_whole(whole: StepAgreement) -> bool:
    """Print and return whether the results of the whole models keep the carried bound."""
    beyond = [package for package, ratio in whole.ratios.items() if not ratio <= 1]
    if whole.ratios and whole.judged:
        told = ", ".join(f"{package} {ratio:.3g}" for package, ratio in whole.ratios.items())
        verdict = f"beyond it: {', '.join(beyond)}" if beyond else "all keep it"
        line = f"{whole.name}, error ratios of the whole models by the carried bound: {told}; {verdict}"
        console.print(Text(line, style="bold red" if beyond else "bold green"))
    return not beyond


def tell_unjudged(steps: list[str]) -> bool:
    """Print which steps could not be judged in full; return whether all could."""
    if steps:
        count = "1 step gives" if len(steps) == 1 else f"{len(steps)} steps give"
        first, more = steps[0], f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        told = f"{count} NaN or infinities and could not be judged in full: {first}{more}"
        console.print(Text(told, style="bold red"))
    return not steps


def load_models(
    checkpoint: Path, dialect: str | None, settings: list[str] | None, packages: list[str], dtype: str
) -> dict[str, Any]:
    """Load the model in every package by its own function, from the file or folder as it is or widened to float64."""
    from conformance.models.local import cast
    from conformance.models.stepwise import framework_of
    from specification.checkpoints import read_safetensors

    given: Any = checkpoint
    if dtype == "float64" and dialect is not None:
        given = {name: cast(array, dtype) for name, array in read_safetensors(checkpoint)[0].items()}
    models = {}
    for package in packages:
        with warnings.catch_warnings(), framework_of(package).context():
            warnings.simplefilter("ignore")  # `read_checkpoint` has printed them
            module = importlib.import_module(package)
            if dialect is None:
                models[package] = module.load_pretrained(given, dtype=dtype)
            else:
                models[package] = module.load(dialect, given, **hyperparameters(settings or []))
    return models


def read_checkpoint(
    checkpoint: Path, dialect: str | None, settings: list[str] | None, unread: list[str] | None = None
) -> tuple[Any, Any]:
    """Return the parameters as NumPy arrays, and the configuration; print what was widened.

    unread: a list to which the names of entries are added that the model does not use.
    """
    from specification.dialects import read, read_folder
    from specification.loading.reader import UNREAD

    if not checkpoint.exists():
        refuse(f"{checkpoint} is not there")
    if checkpoint.is_dir() and (dialect or settings):
        refuse(f"{checkpoint} is a folder, whose config.json says what --dialect and --set say of a file")
    if not checkpoint.is_dir() and dialect is None:
        refuse(f"{checkpoint} is a file, and needs --dialect")
    listening = UNREAD.set(unread)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if dialect is None:
                found = read_folder(checkpoint)
            else:
                found = read(dialect, checkpoint, **hyperparameters(settings or []))
    except (OSError, TypeError, ValueError) as error:
        refuse(str(error))
    finally:
        UNREAD.reset(listening)
    for warning in caught:
        console.print(Text(str(warning.message)))
    return found


def hyperparameters(settings: list[str]) -> dict[str, Any]:
    """Read "num_heads=12" as a number, "norm_first=true" as a truth value, everything else as text."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, given, value = setting.partition("=")
        if not given:
            raise ValueError(f"--set takes name=value, got {setting!r}")
        if name in found:
            raise ValueError(f"--set gives {name} twice")
        found[name] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
        for kind in (float, int):
            with suppress(ValueError):
                found[name] = kind(value)
    return found


def packages_here() -> list[str]:
    from conformance.cli.run import FRAMEWORKS, available

    return [package for package in FRAMEWORKS if available(package)]
