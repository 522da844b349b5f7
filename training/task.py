"""What is trained: a model of the three packages, its loss, and a batch of its data, all as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from specification.configuration import Configuration

if TYPE_CHECKING:
    from training.packages import Package

DTYPES = ("float32", "float64")


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

    def counted(self, targets: np.ndarray) -> np.ndarray:
        """True for the targets over which the loss is a mean."""
        ignore = dict(self.loss_options).get("ignore")
        return np.ones(targets.shape, bool) if ignore is None else targets != ignore


def setting(
    default: bool | int | float | str, what: str, *, least: int | None = None, share: bool = False, shown: str = ""
) -> Any:
    """Return a field of settings.

    Args:
        default: its value where none is given.
        what: the help text of its option.
        least: what an integer must be at least.
        share: a number of at least 0 and below 1. Any other is above 0 and finite.
        shown: the default in the help text, where the command has another.
    """
    return field(default=default, metadata={"help": what, "least": least, "share": share, "shown": shown or default})


class RunSettings:
    """What a run is made of, apart from its data: the base of frozen dataclasses of plain values.

    adam: keyword arguments of `adam_step`, without the learning rate.

    Raises:
        ValueError: for settings that make no sense.
    """

    batch: int
    epochs: int
    clip: float
    adam: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        settings: Any = self
        for one in fields(settings):
            value, least = getattr(self, one.name), one.metadata["least"]
            if least is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{one.name} must be an integer of at least {least}, got {value!r}")
            if one.metadata["share"] and not 0 <= value < 1:
                raise ValueError(f"{one.name} must be at least 0 and below 1, got {value!r}")
            if isinstance(one.default, float) and not one.metadata["share"] and not 0 < value < float("inf"):
                raise ValueError(f"{one.name} must be above 0 and finite, got {value!r}")
        if settings.width % settings.heads:
            raise ValueError(f"width must be divisible by heads, got {settings.width} and {settings.heads}")
        if settings.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {settings.dtype!r}")
        self.task()

    def task(self) -> Task:
        """What is trained."""
        raise NotImplementedError

    def rate(self, package: Package, step: int) -> Any:
        """The learning rate of a step, counted from 0, by a package's schedule."""
        raise NotImplementedError
