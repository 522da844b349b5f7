"""Implementations of a training step under one interface: the three packages, and anybody's function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specification.optimizers import AdamState
from specification.parameters import mapped
from training.lockstep.bounds import Adam
from training.lockstep.expected import QUANTITIES, Given
from training.lockstep.recipe import Recipe
from training.packages import PACKAGES, Package
from training.task import Task

Answer = dict[str, Any]
"""NumPy trees by quantity; what an implementation does not tell is missing."""


class Trainer(Protocol):
    """One implementation."""

    @property
    def name(self) -> str:
        """For the report."""

    def step(self, given: Given) -> Answer:
        """Take one step; the parameters and averages that are given may not change."""

    def predict(self, given: Given) -> Answer:
        """What the model gives for the batch in evaluation, under "predictions"; nothing if it cannot say."""


@dataclass(frozen=True)
class PackageTrainer:
    """One of the three packages."""

    package: Package
    task: Task
    recipe: Recipe

    @property
    def name(self) -> str:
        return self.package.name

    def step(self, given: Given) -> Answer:
        package, recipe = self.package, self.recipe
        given = copy.deepcopy(given)
        parameters, mean, square = package.arrays(given.state[:3])
        state = AdamState(counted(given.state.step, package.adam_start(parameters)), mean, square)
        loss, gradients = package.loss_and_gradients(self.task, parameters, given.batch, given.dropout)
        clipped, norm = package.clip(gradients, np.inf if recipe.clip is None else recipe.clip)
        with package.context():
            rate = recipe.rate(package, given.state.step)
        moved, after = package.adam_step(parameters, clipped, state, learning_rate=rate, **dict(recipe.adam))
        answer = {"loss": loss, "gradients": gradients, "norm": norm, "clipped gradients": clipped}
        answer |= {"learning rate": rate, "mean": after.mean, "square": after.square, "parameters": moved}
        answer |= {"arguments": (parameters, mean, square)}
        return {quantity: package.numbers(tree) for quantity, tree in answer.items()}

    def predict(self, given: Given) -> Answer:
        parameters = self.package.arrays(copy.deepcopy(given.state.parameters))
        return {"predictions": self.package.numbers(self.package.predict(self.task, parameters, given.batch))}


def counted(step: int, start: AdamState) -> Any:
    """The number of steps as a package counts them."""
    return start.step + step


@dataclass(frozen=True)
class FunctionTrainer:
    """Anybody's function (given, task, adam, clip) -> answer, in NumPy arrays.

    given: a `Given`; adam: its numbers, the learning rate among them; clip: the largest norm, or None.
    The answer has any of the names in `QUANTITIES`: numbers, trees like the parameters, or arrays by path.
    """

    name: str
    function: Callable[[Given, Task, Adam, float | None], Answer]
    task: Task
    recipe: Recipe

    def step(self, given: Given) -> Answer:
        own, adam = copy.deepcopy(given), self.recipe.adam_at(given.state.step, PACKAGES["reference_numpy"])
        told = self.function(own, self.task, adam, self.recipe.clip)
        unknown = [name for name in told if name not in QUANTITIES]
        if unknown or not told:
            what = f"got {unknown[0]!r}" if unknown else "there is none"
            raise ValueError(f"the results of a step are among {', '.join(QUANTITIES)}; {what}")
        return {name: mapped(np.asarray, tree) for name, tree in told.items()} | {"arguments": own.state[:3]}

    def predict(self, given: Given) -> Answer:
        return {}
