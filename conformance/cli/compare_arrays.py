"""`conformance compare-arrays`: judge results that stand in a file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import numpy as np
import typer
from rich.text import Text

from conformance.cli.console import console, explain_error, refuse
from conformance.cli.options import complete_names, operation_names

if TYPE_CHECKING:
    from specification.masks import Mask

FILE = (
    "a .npz or .safetensors file: the operation's arguments by name, its results as output (and logsumexp, ...), "
    "or as result.NAME where an argument has the same name, and to judge gradients cotangent and gradient.NAME"
)
MASKS = "causal, causal:OFFSET, window:LEFT,RIGHT, window:LEFT,RIGHT:OFFSET or none"
SET = f"an argument that is not in the file, such as scale=0.125 or bias=none; mask is {MASKS}; may be repeated"
FORMATS = "compare-arrays takes .npz and .safetensors files of plain arrays"


def compare_arrays(
    file: Annotated[Path, typer.Argument(help=FILE, metavar="FILE")],
    operation: Annotated[
        str, typer.Option(help="what was computed: attention, ...", autocompletion=complete_names(operation_names))
    ],
    given: Annotated[list[str] | None, typer.Option("--set", help=SET, metavar="NAME=VALUE")] = None,
    layout: Annotated[str, typer.Option(help="BTHD if arrays are [batch, length, heads, width]")] = "BHTD",
    conventions: Annotated[str, typer.Option(help="intended departures, as in check")] = "",
    profile: Annotated[str, typer.Option(help="what decides the verdict: core, robust or strict")] = "robust",
) -> None:
    """Judge results that were computed elsewhere, and saved beside their inputs.

    Exit code 0: they conform. 1: they do not. 2: they cannot be judged.
    """
    from conformance.judge.given_results import compare

    try:
        arrays = read_arrays(file)
        inputs, results, gradients, cotangents = sort_entries(operation, arrays, read_values(given or []))
        # Optimizers have an argument of that name, and no gradients that could be judged.
        judged: dict[str, Any] = {"cotangent": cotangents or None}
        judged["gradients"] = inputs.pop("gradients", gradients or None)
        if others := inputs.keys() & inspect.signature(compare).parameters:
            raise TypeError(f"{operation} does not know {' and '.join(sorted(others))}")
        found = compare(operation, results, profile=profile, layout=layout, conventions=conventions, **judged, **inputs)
    except (OSError, ValueError, TypeError, KeyError) as error:
        refuse(explain_error(error))
    console.print(Text(str(found)), soft_wrap=True)
    raise typer.Exit(0 if found.conforms else 1)


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Read a file's arrays by name; OSError or ValueError for one that cannot be read."""
    from specification.checkpoints import read_safetensors

    if file.suffix == ".safetensors":
        return read_safetensors(file)[0]
    if file.suffix != ".npz":
        raise ValueError(f"{file}: {FORMATS}")
    with file.open("rb") as stream:
        try:
            with np.load(stream, allow_pickle=False) as members:
                return dict(members)
        # NumPy says of what is no array, or no .npz file, how to read it as a pickle, which may run any program.
        except (BadZipFile, ValueError, EOFError, TypeError, AttributeError):
            raise ValueError(f"{file} cannot be read as a .npz file; {FORMATS}") from None


def read_mask(text: str) -> Mask | None:
    """Read one of `MASKS`."""
    from specification import Causal, SlidingWindow

    kind, *rest = text.split(":")
    try:
        if text == "none":
            return None
        if kind == "causal" and len(rest) < 2:
            return Causal(*map(int, rest))
        if kind == "window" and 0 < len(rest) < 3:
            left, right = (None if side == "all" else int(side) for side in rest[0].split(","))
            return SlidingWindow(left, right, *map(int, rest[1:]))
    except ValueError:
        pass
    raise ValueError(f"--set mask takes {MASKS}, got {text!r}")


def read_values(given: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE as numbers, truth values, None, lists, or else as text."""
    found: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not (name and equals):
            raise ValueError(f"--set takes NAME=VALUE, got {item!r}")
        if name == "mask":
            found[name] = read_mask(text.lower())
            continue
        try:
            found[name] = ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found


def sort_entries(
    operation: str, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]
) -> tuple[dict[str, Any], Any, dict[str, Any], dict[str, Any]]:
    """Return the operation's arguments, its results, its gradients, and their cotangents, each by name."""
    from conformance.cases.arguments import arguments
    from conformance.cases.facts import operation_facts, operations
    from conformance.cases.options import refuse_unknown

    refuse_unknown("operation", [operation], operations())
    record = operation_facts(operation)
    names = (*record.results, *(("logsumexp",) if operation == "attention" else ()))
    own_names = [f"result.{name}" if name in (*record.arguments, "state") else name for name in names]
    kinds = dict[str, dict[str, Any]](result={}, gradient={}, cotangent={})
    others: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        kind, _, of = name.partition(".")
        if name in own_names and kind != "result":
            kind, of = "result", name
        if kind not in kinds or name == "gradient":
            others[name] = array
        elif (of := of or names[0]) in kinds[kind]:
            raise ValueError(f"the file has two arrays for {kind}.{of}")
        else:
            kinds[kind][of] = array
    results, gradients, cotangents = kinds.values()
    if not results:
        expected, got = " or ".join(own_names), ", ".join(arrays) or "nothing"
        raise ValueError(f"the file has no result: expected {expected}, got {got}")
    # Counts of a state are whole numbers, whatever the dtype in which a file holds them.
    results = {n: a.item() if a.ndim == 0 and a.dtype.kind in "iu" else a for n, a in results.items()}
    inputs = {name: array for name, array in others.items() if array.ndim}
    options: dict[str, Any] = {name: array.item() for name, array in others.items() if not array.ndim}
    options |= {name: inputs.pop(name) for name in ("mask", "dropout_keep") if name in inputs}
    known = {*record.lists, *record.projections, *(record.structure.fields if record.structure is not None else ())}
    fields = {name: name.partition(".")[0].partition("[")[0] for name in inputs}  # inner[0].weight: inner
    unknown = {name: inputs.pop(name) for name, field in fields.items() if field != name and field not in known}
    positional, keywords = arguments(operation, inputs, {**options, **values})
    own = dict(zip(record.arguments, positional, strict=True))
    own = {n: v for n, v in own.items() if v is not None or n in values}
    return own | keywords | unknown, results, gradients, cotangents
