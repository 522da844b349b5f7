"""A checkpoint: a folder with the model, the optimizer's state, the vocabulary, and the place in the run.

model.safetensors      as the packages' `save` writes it, so each `restore` reads it
optimizer.safetensors  the moving averages of Adam
vocabulary.json        the tokenizer
run.json               settings, package, and how far the run has come
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformance.reports.files import write_folder
from conformance.reports.versions import versions
from specification.checkpoints import flatten, read_model, read_safetensors, unflatten, write_model, write_safetensors
from specification.optimizers import AdamState
from specification.parameters import Classifier, Embedding
from training.settings import Settings
from training.task import RunSettings
from training.vocabulary import read as read_vocabulary

FORMAT = "transformer-conformance training 1"
MODEL, OPTIMIZER, VOCABULARY, RUN = "model.safetensors", "optimizer.safetensors", "vocabulary.json", "run.json"
MOMENTS = ("mean", "square")


class Place(NamedTuple):
    """How far a run has come: steps in all, whole epochs, and batches of the epoch that has begun."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


class Kind(NamedTuple):
    """What is particular to the checkpoints of one command.

    settings: from what `run.json` holds. vocabulary: from a file. entries: how many a vocabulary has for the embedding
    of every stack of the parameters.
    """

    command: str
    settings: Callable[..., RunSettings]
    parameters: type[Any]
    vocabulary: Callable[[Path], Any]
    entries: Callable[[Any], Iterable[int]]


REVIEWS = Kind("reviews", Settings, Classifier, read_vocabulary, lambda vocabulary: [vocabulary.get_vocab_size()])


class Checkpoint(NamedTuple):
    """settings: `RunSettings`. parameters, state: trees of NumPy arrays. data: a digest of what is trained on."""

    settings: Any
    package: str
    data: str
    place: Place
    vocabulary: Any
    parameters: Any
    state: AdamState


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into a folder of its own, named after its step.

    Raises:
        OSError: where the disk is full, or the folder cannot be written.
    """
    from safetensors import SafetensorError

    state = checkpoint.state
    moments = {f"{kind}.{name}": a for kind in MOMENTS for name, a in flatten(getattr(state, kind)).items()}
    told = {
        "format": FORMAT,
        "package": checkpoint.package,
        "versions": versions(),
        "data": checkpoint.data,
        "place": checkpoint.place._asdict(),
        "settings": asdict(checkpoint.settings),
    }

    def files(into: Path) -> None:
        try:
            write_model(into / MODEL, checkpoint.parameters, checkpoint.settings.task().configuration)
            write_safetensors(into / OPTIMIZER, moments, {"format": FORMAT, "step": str(int(state.step))})
        except SafetensorError as error:
            raise OSError(f"{into / MODEL}: {error}") from error
        (into / VOCABULARY).write_text(checkpoint.vocabulary.to_str(), encoding="utf-8")
        (into / RUN).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    path = folder / f"step-{checkpoint.place.step:07d}"
    write_folder(path, files)
    return path


def newest(folder: Path) -> Path | None:
    """The checkpoint of a run's folder that has come furthest; the folder itself where it is a checkpoint."""
    if (folder / RUN).exists():
        return folder
    return max(folder.glob("step-*"), default=None) if folder.is_dir() else None


def read(folder: Path, kind: Kind = REVIEWS) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: of the checkpoint, or of a run, whose newest one is taken.
        kind: whose it must be.

    Raises:
        ValueError: for a folder without a checkpoint, and for one whose parts cannot be read or do not fit together.
    """
    place = newest(folder)
    if place is None:
        raise ValueError(f"{folder} is no checkpoint" if folder.is_dir() else f"there is no folder {folder}")
    try:
        return checked(place, kind)
    except (KeyError, TypeError, OSError) as error:
        raise ValueError(f"{place} is no whole checkpoint: {error}") from error


def checked(folder: Path, kind: Kind) -> Checkpoint:
    told = told_by(folder / RUN)
    parameters, configuration = read_model(folder / MODEL)
    if not isinstance(parameters, kind.parameters):
        raise ValueError(f"{folder} is no checkpoint of `{kind.command}`: its model is a {type(parameters).__name__}")
    settings = kind.settings(**told["settings"])
    if configuration != settings.task().configuration:
        raise ValueError(f"{folder / MODEL} is another model than {folder / RUN} says")
    vocabulary = kind.vocabulary(folder / VOCABULARY)
    embeddings = [part.embedding for part in parameters if hasattr(part, "embedding")]
    for embedding, size in zip(embeddings, kind.entries(vocabulary), strict=True):
        rows = len(embedding.tokens) if isinstance(embedding, Embedding) else 0
        if rows != size:
            raise ValueError(f"{folder / VOCABULARY} has {size} entries, and the model {rows}")
    place, path = Place(**told["place"]), folder / OPTIMIZER
    arrays, metadata = read_safetensors(path)
    if metadata != {"format": FORMAT, "step": str(place.step)}:
        raise ValueError(f"{path} is not the optimizer's state after {place.step} steps")
    expected = {key: (array.shape, array.dtype) for key, array in flatten(parameters).items()}
    moments = []
    for name in MOMENTS:
        own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
        if {key: (array.shape, array.dtype) for key, array in own.items()} != expected:
            raise ValueError(f"{path} does not fit the model")
        if not all(np.isfinite(array).all() for array in own.values()):
            raise ValueError(f"{path} has numbers that are not finite")
        moments.append(unflatten(type(parameters), own))
    state = AdamState(place.step, *moments)
    return Checkpoint(settings, told["package"], told["data"], place, vocabulary, parameters, state)


def told_by(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by a training run of this version")
    return told
