"""`conformance trace`: every intermediate value of a model, on one sentence."""

from __future__ import annotations

import importlib.util
import os
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from zipfile import BadZipFile, is_zipfile

import numpy as np
import typer
from rich.text import Text

from conformance.cli import port
from conformance.cli.console import console, refuse, save_steps
from conformance.cli.options import Json
from conformance.cli.port import packages_here

if TYPE_CHECKING:
    from conformance.models.agreement import Agreement
    from conformance.models.departures import Departures
    from specification.parameters import ModelParameters

INPUT = "or token ids, such as 5,7,2, as a file needs; source/target: 5,7,2/3,1"
TEXT = "where a folder of Hugging Face's comes first: the sentence, or token ids"
LAYER = "the block, or its attention, to show and draw, such as blocks.2.attention"
CHECKPOINT = "a safetensors file, or a folder, instead of all-MiniLM-L6-v2"
SAVE = (
    "write the definition's result of every step, with --all also of every piece, into this file, by name, in float64"
)
AGAINST = (
    "compare the arrays in this file, by the name of step or piece, with the definition's; name the first to depart"
)
NEXT = 3
"""So many departures are told after the first."""
SENTENCE = "A masterpiece four years in the making."


class Sequences(NamedTuple):
    """Token ids [1, T], and the word for each; of the source and the target, or of one sequence."""

    ids: tuple[np.ndarray, ...]
    words: tuple[list[str], ...]


def trace(
    sentence: Annotated[str, typer.Argument(help=INPUT)] = SENTENCE,
    text: Annotated[str | None, typer.Argument(help=TEXT)] = None,
    layer: Annotated[str | None, typer.Option(help=LAYER)] = None,
    every: Annotated[bool, typer.Option("--all", help="show the inside of all blocks")] = False,
    picture: Annotated[Path | None, typer.Option(help="draw the weights into this PNG, SVG or PDF file")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help=CHECKPOINT)] = None,
    dialect: port.Family = None,
    settings: port.Settings = None,
    json: Json = None,
    save: Annotated[Path | None, typer.Option(help=SAVE, metavar="FILE.npz")] = None,
    against: Annotated[Path | None, typer.Option(help=AGAINST, metavar="FILE.npz")] = None,
) -> None:
    """Show every intermediate value of a model in all three packages, and draw its attention.

    For one block, or for all, it also shows the values inside: queries, keys and values, scores before and after the
    mask, weights, heads, and the feed-forward network before and after its activation. The judge compares each package
    with the definition, by error bounds.

    A folder of Hugging Face's, with a config.json, may stand before the sentence. Its tokenizer.json then makes tokens
    of the sentence, and is not needed for token ids.

    With --against it compares values that you computed and saved under the names of the steps, or of the pieces inside.
    Their bounds are carried from the input, for the dtype of the file.

    Exit code 0: all steps keep their bounds. 1: one does not. 2: wrong usage, or NaN or infinities kept the judge from
    some steps.
    """
    from conformance.models.agreement import agreement
    from conformance.models.departures import departures
    from conformance.models.inside import INSIDE, insert_pieces, own_pieces, weights_within
    from conformance.reports.models import departures_content, draw_weights, steps_content, steps_table, unknown_format
    from conformance.reports.narrow import fitting
    from specification.dialects import dialect_of_folder
    from specification.parameters import Embedding

    if against is not None and not against.exists():
        refuse(f"{against} is not there")
    problem = None if picture is None else unknown_format(picture)
    if problem:
        refuse(problem)
    first_is_folder = os.path.isdir(sentence)  # a long sentence is an error for Path.is_dir
    if first_is_folder or text is not None:
        if checkpoint is not None or not first_is_folder:
            got = sentence if os.path.exists(sentence) else f"{sentence}, which is not there"
            refuse(f"a folder must stand before the sentence where there are two words, got {got}")
        checkpoint, sentence = Path(sentence), text or SENTENCE
    if checkpoint is None:
        if settings or dialect is not None:
            refuse("--dialect and --set need --checkpoint")
        checkpoint = port.find_minilm()
    folder = checkpoint if checkpoint.is_dir() else None
    dialect = dialect if folder or dialect else "bert"
    parameters, configuration = port.read_checkpoint(checkpoint, dialect, settings)
    dialect = dialect or dialect_of_folder(checkpoint).name
    stack = next((part for part in parameters if hasattr(part, "embedding")), parameters)
    if not isinstance(getattr(stack, "embedding", None), Embedding):
        refuse("trace takes tokens, and this model takes embeddings or images; conformance port judges it")
    ids = folder is None or set(sentence) <= set("0123456789,/ ")
    sequences = token_ids(sentence, parameters) if folder is None or ids else read_text(sentence, parameters, folder)
    packages = packages_here()
    try:
        found = agreement(parameters, configuration, sequences.ids, {}, packages)
    except (TypeError, ValueError) as error:
        refuse(str(error))
    attentions = [name for name, taken in found.oracle.taken.items() if taken.step == "attend"]
    if not attentions:
        refuse("this model has no attention")
    inside = [name for name in attentions if layer is None or name == layer or name.startswith(f"{layer}.")]
    if not inside:
        refuse(f"no attention is called {layer}; there are {', '.join(attentions)}")
    name = inside[0]
    for words in sequences.words:
        console.print(Text(" ".join(words)))
    compared: Departures | None = None
    if against is not None:
        try:
            compared = departures(found.oracle, arrays_in(against))
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            refuse(f"{against} cannot be compared: {error}")
    block = name.rpartition(".")[0]
    shown = [step for step, taken in found.oracle.taken.items() if taken.step in INSIDE]
    shown = [step for step in shown if every or step.rpartition(".")[0] == block]
    shown += [] if compared is None else compared.looked_into
    found = insert_pieces(found, shown, packages)
    own: dict[str, Any] = {}
    if compared is not None:
        ratios = {step: finding.ratio for step, finding in compared.findings.items()}
        own = {"yours": ratios, "dtype": compared.dtype}
    console.print(fitting(steps_table(found, packages, **own), console))
    if picture is not None:
        source, target = sequences.words[0], sequences.words[-1]
        queries = source if name.startswith("encoder.") else target
        keys = source if name.endswith("cross_attention") else queries  # which goes from the target to the source
        try:
            weights = weights_within(found.oracle.taken[name].arguments)
            draw_weights(weights[0], queries, keys, f"{name}: weights", picture)
        except OSError as error:
            refuse(f"{picture} cannot be written: {error}")
        console.print(Text(f"{name} drawn in {picture}"))
    if save is not None:
        steps: dict[str, Any] = {name: np.asarray(taken.result) for name, taken in found.oracle.taken.items()}
        pieces: dict[str, Any] = own_pieces(found.oracle) if every else {}
        try:
            with save.open("wb") as file:
                np.savez(file, **steps, **pieces)
        except OSError as error:
            refuse(f"{save} cannot be written: {error.strerror or error}")
        console.print(Text(f"{count_text(len(steps), len(pieces))} saved in {save}"))
    conforms, judged = port.tell_steps(found, packages), port.tell_unjudged(found.unjudged)
    if compared is not None and against is not None:
        tell_departures(compared, found, against)
    if json is not None:
        told: dict[str, Any] = {"command": "trace", "checkpoint": str(checkpoint), "dialect": dialect}
        told |= {"settings": settings or [], "input": sentence}
        told["against"] = None if compared is None or against is None else departures_content(compared, against)
        save_steps(json, steps_content(found, packages, own=compared, **told))
    conforms = conforms and (compared is None or compared.first is None)
    raise typer.Exit(1 if not conforms else 0 if judged else 2)


def count_text(steps: int | str, pieces: int) -> str:
    return f"{steps} steps" + (f" and {pieces} pieces inside" if pieces else "")


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file; ValueError for any other, also for the zip files that torch.save writes."""
    with path.open("rb") as file:
        if is_zipfile(file):
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                arrays = dict(members)
            if all(isinstance(array, np.ndarray) for array in arrays.values()):  # of other members it gives the bytes
                return arrays
    raise ValueError("it is no .npz file")


def tell_departures(compared: Departures, found: Agreement, path: Path) -> None:
    """Print whether a file departs from the definition, and where first."""
    from conformance.reports.sentences import describe_finding
    from specification.loading.reader import first_few

    steps, every = sum(name in found.oracle.taken for name in compared.findings), len(found.oracle.taken)
    if compared.first is None:
        worst = max(compared.findings.values(), key=lambda finding: finding.ratio)
        console.print(Text(f"{path}: none departs; the largest error ratio is {worst.ratio:.3g}", style="bold green"))
        if compared.dtype != "float64":
            console.print(Text("values computed and saved in float64 show smaller departures"))
    else:
        departing, *more = (compared.findings[name] for name in compared.departing)
        console.print(Text(f"{path}: the first that departs is {describe_finding(departing)}", style="bold red"))
        for finding in more[:NEXT]:
            console.print(Text(f"then {describe_finding(finding)}"))
        if len(more) > NEXT:
            console.print(Text(f"and {len(more) - NEXT} more"))
        if narrower := names_before(compared, found) if departing.kind == "value" else []:
            console.print(Text("to narrow it down, save these too:"))
            console.print(*(Text(f"  {name}") for name in narrower), sep="\n", soft_wrap=True)
    count = count_text(f"{steps} of {every}", len(compared.findings) - steps)
    console.print(Text(f"{count} are in {path}, in {compared.dtype}; their bounds are carried from the input"))
    if compared.rounded:
        console.print(Text(f"the checkpoint's weights were rounded to {compared.dtype} first"))
    if compared.unknown:
        console.print(Text(f"names of no step or piece: {', '.join(first_few(compared.unknown))}"))


def names_before(compared: Departures, found: Agreement) -> list[str]:
    """Return steps before the first that departs, back to the last one in the file; without any, the step's pieces."""
    from conformance.models.inside import piece_names

    names, given = list(found.oracle.taken), compared.findings
    if compared.first not in names:
        return []
    before = names[: names.index(compared.first)]
    missing = list(takewhile(lambda name: name not in given, reversed(before)))[::-1]
    return missing or [name for name in piece_names(found.oracle).get(compared.first, ()) if name not in given]


# --- the input --------------------------------------------------------------------------------------------------------


def read_text(text: str, parameters: ModelParameters, folder: Path) -> Sequences:
    from conformance.models.minilm import encode_texts
    from specification.parameters import Transformer

    path = folder / "tokenizer.json"
    if not path.is_file():
        refuse(f"{path} is not there: give token ids, such as 5,7,2, in place of a sentence")
    if importlib.util.find_spec("tokenizers") is None:
        refuse("not installed: tokenizers; give token ids, such as 5,7,2, in place of a sentence")
    texts = text.split("/", 1) if isinstance(parameters, Transformer) else [text]
    try:
        found = [encode_texts([part.strip()], folder) for part in texts]
    except Exception as error:  # the library raises no other
        refuse(f"{path} cannot be read: {error}")
    found = found * 2 if isinstance(parameters, Transformer) and len(found) == 1 else found
    return Sequences(tuple(one.tokens for one in found), tuple(one.words[0] for one in found))


def token_ids(text: str, parameters: ModelParameters) -> Sequences:
    """Read token ids; an encoder-decoder takes two sequences, or the same twice."""
    from specification.parameters import Transformer

    texts = text.split("/")
    pair = isinstance(parameters, Transformer)
    if len(texts) > (2 if pair else 1):
        refuse(f"this model takes {'a source and a target' if pair else 'one sequence'}, got {text!r}")
    try:
        ids = [np.array([[int(word) for word in part.split(",")]], np.int64) for part in texts]
    except (ValueError, OverflowError):
        refuse(f"token ids are numbers with commas between them, got {text!r}")
    ids = ids * 2 if pair and len(ids) == 1 else ids
    return Sequences(tuple(ids), tuple([str(number) for number in row[0]] for row in ids))
