"""The time of a step of training, ours beside that of the tutorial's own loop with `torch.optim.Adam`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from training import drawing
from training.batches import batch_of
from training.packages import PACKAGES
from training.reviews import LABELS
from training.settings import Settings
from training.stepping import advance

if TYPE_CHECKING:
    from training.task import Batch

TUTORIAL = "the tutorial's loop"
CLOCKS: tuple[Callable[[], float], ...] = (time.perf_counter, time.process_time)


class Timed(NamedTuple):
    """The least times of a step, in seconds: on the wall, and of all processors together."""

    name: str
    wall: float
    processor: float


def measure(settings: Settings, packages: Sequence[str], repeats: int, words: int) -> list[Timed]:
    """Time steps of the tutorial's loop and of packages, one after the other in every round.

    Two more rounds than `repeats` come first, in which memory is allocated and JAX compiles.
    """
    texts = np.random.default_rng(0).integers(2, settings.vocabulary, (settings.batch, words))
    batch = batch_of(list(texts), [number % 2 for number in range(settings.batch)], settings)
    steps = {TUTORIAL: tutorial_step(settings, batch)} | {name: step_of(name, settings, batch) for name in packages}
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in steps}
    for _ in range(repeats + 2):
        for name, step in steps.items():
            before = [clock() for clock in CLOCKS]
            step()
            times[name].append(tuple(clock() - start for clock, start in zip(CLOCKS, before, strict=True)))
    return [Timed(name, *map(min, zip(*every[2:], strict=True))) for name, every in times.items()]


def tutorial_step(settings: Settings, batch: Batch) -> Callable[[], object]:
    import torch

    from training.tutorial import CTransformer, optimizer_of, train

    model = CTransformer(
        settings.width, settings.heads, settings.depth, settings.longest, settings.vocabulary, len(LABELS),
        max_pool=settings.pooling == "max", dropout=settings.dropout,
    )  # fmt: skip
    going = optimizer_of(model, settings.learning_rate, settings.warmup)
    pair = torch.from_numpy(batch.inputs[0]), torch.from_numpy(batch.targets)
    return lambda: list(train(model, *going, [pair]))


def step_of(name: str, settings: Settings, batch: Batch) -> Callable[[], object]:
    """A step of the run, with what it draws."""
    package, number = PACKAGES[name], 0
    parameters = package.arrays(drawing.initial_weights(settings, settings.vocabulary))
    state = package.adam_start(parameters)

    def step() -> None:
        nonlocal parameters, state, number
        keep = drawing.dropout(settings, batch.inputs[0], number)
        taken = advance(package, settings, parameters, state, batch, keep, number)
        parameters, state, number = taken.parameters, taken.state, number + 1

    return step
