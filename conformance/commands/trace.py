"""`conformance trace`: a look inside a model, on one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from conformance.commands.console import console, refuse
from conformance.commands.port import Settings, packages_here, read_checkpoint

SENTENCE = "A masterpiece four years in the making."


def trace(
    sentence: Annotated[str, typer.Argument(help="for a checkpoint of your own: token ids, such as 5,7,2")] = SENTENCE,
    layer: Annotated[int, typer.Option(help="whose attention weights are drawn", min=0)] = 0,
    picture: Annotated[Path | None, typer.Option(help="a PNG or SVG file of the attention weights")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="a safetensors file instead of all-MiniLM-L6-v2")] = None,
    dialect: Annotated[str, typer.Option(help="whose names the checkpoint has")] = "bert",
    settings: Settings = None,
) -> None:
    """Every intermediate value of a model by name, in all three packages, and a picture of its attention."""
    from conformance.models.agreement import agreement
    from conformance.reports.models import draw_weights, steps_table, weights_of

    if checkpoint is None:
        parameters, configuration, ids, words = from_minilm(sentence)
    else:
        parameters, configuration = read_checkpoint(checkpoint, dialect, settings)
        ids = token_ids(sentence)
        words = [str(number) for number in ids[0]]
    packages = packages_here()
    inputs = (ids, ids) if hasattr(parameters, "decoder") and hasattr(parameters, "encoder") else (ids,)
    try:
        found = agreement(parameters, configuration, inputs, {}, packages)
    except (TypeError, ValueError) as error:
        refuse(str(error))
    console.print(Text(" ".join(words)))
    console.print(steps_table(found, packages))
    if picture is not None:
        names = [name for name, taken in found.oracle.taken.items() if taken.step == "attend"]
        if layer >= len(names):
            refuse(f"there are {len(names)} attentions, counted from 0; no {layer}")
        draw_weights(weights_of(found, names[layer])[0], words, words, f"{names[layer]}: weights", picture)
        console.print(Text(f"{names[layer]} drawn in {picture}"))
    raise typer.Exit(0 if found.first_beyond is None else 1)


def from_minilm(sentence: str) -> tuple[Any, Any, np.ndarray, list[str]]:
    from conformance.models import real

    if real.missing():
        refuse(f"not installed: {', '.join(real.missing())}; give a checkpoint instead")
    parameters, configuration = real.parameters()
    encoded = real.tokenizer().encode(sentence)
    return parameters, configuration, np.array([encoded.ids]), encoded.tokens


def token_ids(text: str) -> np.ndarray:
    try:
        return np.array([[int(word) for word in text.split(",")]])
    except ValueError:
        refuse(f"token ids are numbers with commas between them, got {text!r}")
