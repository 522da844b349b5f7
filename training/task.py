"""What is trained: a model of the three packages, its loss, and a batch of its data, all as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from specification.configuration import Configuration


class Batch(NamedTuple):
    """NumPy arrays of one step.

    inputs: what the model is called with after its parameters: (tokens,), or (source, target).
    targets: integers, those that the loss compares with: [B] of a classifier, [B, T] of a decoder.
    options: arrays that the model takes by name beside its dropout, such as keep [B, T].
    """

    inputs: tuple[np.ndarray, ...]
    targets: np.ndarray
    options: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Task:
    """Hashable and free of arrays, so that it can be a static argument under `jax.jit`.

    model: the name of a function of `transformer.py`, such as "classifier"; the definition has `<model>_vjp`.
    loss: the name of a function of `losses.py`, "nll_loss" or "cross_entropy".
    loss_options: its keyword arguments, such as (("label_smoothing", 0.1), ("ignore", 0)).
    """

    model: str
    configuration: Configuration
    loss: str
    loss_options: tuple[tuple[str, Any], ...] = field(default=())


class RunSettings(Protocol):
    """What a run is made of, apart from its data: a frozen dataclass of plain values."""

    @property
    def batch(self) -> int:
        """Texts of a step."""

    @property
    def epochs(self) -> int:
        """How often all texts are read."""

    @property
    def clip(self) -> float:
        """The largest norm of all gradients together."""

    @property
    def adam(self) -> Mapping[str, Any]:
        """Keyword arguments of `adam_step`, without the learning rate."""

    def task(self) -> Task:
        """What is trained."""

    def rate(self, package: Any, step: int) -> Any:
        """The learning rate of a step, counted from 0, by a package's schedule."""
