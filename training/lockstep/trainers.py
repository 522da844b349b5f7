"""Implementations of a training step under one interface: the three packages, and anybody's function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specification.optimizers import AdamState
from specification.parameters import mapped
from training.lockstep.bounds import Adam
from training.lockstep.expected import QUANTITIES, Given, adam_at
from training.packages import Package
from training.task import RunSettings, Task

Answer = dict[str, Any]
"""NumPy trees by quantity; what an implementation does not tell is missing."""


@dataclass(frozen=True)
class PackageTrainer:
    """One of the three packages.

    step: takes one step; the parameters and averages that are given may not change. predict: what the model gives for
    the batch in evaluation, under "predictions"; nothing if it cannot say.
    """

    package: Package
    settings: RunSettings

    @property
    def name(self) -> str:
        return self.package.name

    def step(self, given: Given) -> Answer:
        package, settings = self.package, self.settings
        given = copy.deepcopy(given)
        parameters, mean, square = package.arrays(given.state[:3])
        # The sum is an int, or JAX's array, as the package counts steps.
        state = AdamState(package.adam_start(parameters).step + given.state.step, mean, square)
        loss, gradients, _ = package.step(settings.task(), parameters, given.batch, given.dropout)
        clipped, norm = package.clip(gradients, settings.clip)
        with package.context():
            rate = settings.rate(package, given.state.step)
        moved, after = package.adam_step(parameters, clipped, state, learning_rate=rate, **settings.adam)
        answer = {"loss": loss, "gradients": gradients, "norm": norm, "clipped gradients": clipped}
        answer |= {"learning rate": rate, "mean": after.mean, "square": after.square, "parameters": moved}
        answer |= {"arguments": (parameters, mean, square)}
        return {quantity: package.numbers(tree) for quantity, tree in answer.items()}

    def predict(self, given: Given) -> Answer:
        package, task = self.package, self.settings.task()
        parameters = package.arrays(copy.deepcopy(given.state.parameters))
        return {"predictions": package.numbers(package.predict(task, parameters, given.batch))}


@dataclass(frozen=True)
class FunctionTrainer:
    """Anybody's function (given, task, adam, clip) -> answer, in NumPy arrays.

    given: a `Given`; adam: its numbers, the learning rate among them; clip: the largest norm.
    The answer has any of the names in `QUANTITIES`: numbers, trees like the parameters, or arrays by path.
    """

    name: str
    function: Callable[[Given, Task, Adam, float], Answer]
    settings: RunSettings

    def step(self, given: Given) -> Answer:
        own, settings = copy.deepcopy(given), self.settings
        told = self.function(own, settings.task(), adam_at(settings, given.state.step), settings.clip)
        unknown = [name for name in told if name not in QUANTITIES]
        if unknown or not told:
            what = f"got {unknown[0]!r}" if unknown else "there is none"
            raise ValueError(f"the results of a step are among {', '.join(QUANTITIES)}; {what}")
        return {name: mapped(np.asarray, tree) for name, tree in told.items()} | {"arguments": own.state[:3]}

    def predict(self, given: Given) -> Answer:
        return {}


Trainer = PackageTrainer | FunctionTrainer
