"""Implementations of a training step under one interface: the three packages, and anybody's function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specification.optimizers import AdamState
from training.lockstep.expected import Given
from training.lockstep.recipe import Recipe
from training.packages import Package
from training.task import Task

Answer = dict[str, Any]
"""NumPy trees by quantity; what an implementation does not tell is missing."""


class Trainer(Protocol):
    """One implementation."""

    name: str

    def step(self, given: Given) -> Answer:
        """Take one step; the state and the batch that are given may not change."""

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
    """A function (parameters, mean, square, step, batch, dropout, task, recipe) -> answer, all in NumPy arrays."""

    name: str
    function: Callable[..., Answer]
    task: Task
    recipe: Recipe

    def step(self, given: Given) -> Answer:
        state, batch, dropout = copy.deepcopy(given)
        answer = self.function(*state, batch, dropout, self.task, self.recipe)
        return {"arguments": state[:3], **answer}

    def predict(self, given: Given) -> Answer:
        return {}
