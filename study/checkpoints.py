"""A small checkpoint of random numbers for each dialect, under its own names, with inputs for the model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from specification.dialects import DIALECTS
from specification.loading.record import EXAMPLE_SIZES, Dialect


class Entry(NamedTuple):
    """How an entry of a checkpoint is drawn: normally distributed."""

    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0


Entries = dict[str, Entry]


class Small(NamedTuple):
    """hyperparameters: what `load` is told beside the checkpoint. inputs, options: by name, what the model takes."""

    entries: Entries
    hyperparameters: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    options: Mapping[str, Any]
    about: str = ""


def entry(shape: tuple[int, ...], path: str) -> Entry:
    """How an entry is drawn that goes to this path of the parameters.

    A matrix keeps what it multiplies as large as it is; a bias, or what a norm multiplies by, is a little off the 0 or
    1 with which it begins.
    """
    if len(shape) == 1:
        return Entry(shape, 0.2, mean=float(path.endswith("norm.weight")))
    return Entry(shape, 1.0 if ".embedding." in f".{path}" else min(shape) ** -0.5)


def embedded(seed: int, length: int) -> np.ndarray:
    """Embeddings that are easy to read: one decimal."""
    drawn_numbers = np.random.default_rng(seed).uniform(-2, 2, (2, length, EXAMPLE_SIZES["E"]))
    return drawn_numbers.round(1).astype(np.float32)


def of_record(dialect: Dialect) -> Small:
    """The example of a dialect's record."""
    example = dialect.example
    entries = {name: entry(*told) for name, told in dialect.example_entries().items()}
    inputs = {
        name: embedded(seed, given) if isinstance(given, int) else given
        for seed, (name, given) in enumerate(example.inputs.items(), start=1)
    }
    return Small(entries, example.hyperparameters, inputs, example.options, example.about)


@cache
def small() -> dict[str, Small]:
    """By dialect, in the order of the pages: tutorials first."""
    records = sorted(DIALECTS.values(), key=lambda dialect: dialect.tutorial is None)
    return {dialect.name: of_record(dialect) for dialect in records}


def drawn(entries: Entries, seed: int = 0) -> dict[str, np.ndarray]:
    """The checkpoint in float32."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(one.mean, one.spread, one.shape).astype(np.float32) for name, one in entries.items()}
