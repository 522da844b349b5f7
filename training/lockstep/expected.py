"""What the definition gives for one step from a given state, and how far another may be off.

Loss, gradients and predictions are bounded through the whole model (`conformance.models.error_propagation`). What
follows starts from what an implementation itself says it has: its norm and clipped gradients from its gradients, its
averages and parameters from its clipped gradients and its learning rate. So a mistake is named where it is made, and
not once more behind that. Where the implementation does not say, the definition's, with their bounds, take the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import reference_numpy
from conformance.bounds.arithmetic import Approx, Precision, exact
from conformance.bounds.optimizers import SCHEDULES
from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from specification.checkpoints import flatten
from specification.parameters import mapped
from training.lockstep.bounds import Adam, adam, clipped
from training.packages import PACKAGES
from training.task import Batch, RunSettings, Task

if TYPE_CHECKING:
    from specification.parameters import ModelParameters, Tree

RATE = sum(SCHEDULES.values()) + len(SCHEDULES)
"""Roundings of a learning rate, which may be a product of all schedules and a largest rate."""

Bounded = dict[str, Approx]
"""Arrays by path; a single number has the path ""."""

QUANTITIES = (
    *("arguments", "loss", "gradients", "norm", "clipped gradients"),
    *("learning rate", "mean", "square", "parameters", "predictions"),
)
"""In the order in which a step computes them. Arguments: those given must be as before after the call."""


class State(NamedTuple):
    """Between two steps: parameters and Adam's averages, NumPy trees, and how many steps were taken."""

    parameters: Any
    mean: Any
    square: Any
    step: int


class Given(NamedTuple):
    """Of one step: where it starts, its batch, and the keep masks that are drawn for it."""

    state: State
    batch: Batch
    dropout: Any


def first_state(parameters: ModelParameters, dtype: str) -> State:
    _, mean, square = reference_numpy.adam_start(parameters)
    return in_dtype(State(parameters, mean, square, 0), dtype)


def in_dtype(state: State, dtype: str) -> State:
    parameters, mean, square = (mapped(lambda array: np.asarray(array, dtype), tree) for tree in state[:3])
    return State(parameters, mean, square, state.step)


class Model:
    """What the definition's model gives in a step, exactly enough, for an implementation that computes in a dtype."""

    def __init__(self, task: Task, given: Given, dtype: str) -> None:
        self.task, self.given, self.dtype = task, given, dtype
        self.parameters = widen_parameters(given.state.parameters)
        self.options = {"configuration": task.configuration, **given.batch.options}
        self.sites = {} if given.dropout is None else {"dropout": given.dropout}

    def trained(self, functions: SimpleNamespace) -> Any:
        task, batch = self.task, self.given.batch
        output = getattr(functions, task.model)(self.parameters, *batch.inputs, **self.options, **self.sites)
        loss = getattr(functions, task.loss)(output, batch.targets, **dict(task.loss_options))
        back, model = (getattr(functions, f"{name}_vjp") for name in (task.loss, task.model))
        cotangent = back(output, batch.targets, np.ones_like(loss), **dict(task.loss_options))
        found = model(self.parameters, *batch.inputs, cotangent, **self.options, **self.sites)
        return [loss, getattr(found, "parameters", found)]

    def predicted(self, functions: SimpleNamespace) -> Any:
        return getattr(functions, self.task.model)(self.parameters, *self.given.batch.inputs, **self.options)

    @cached_property
    def quantities(self) -> dict[str, Bounded]:
        """Loss, gradients, and the predictions without dropout."""
        (loss, gradients), (error, errors) = carried_bound(self.trained, self.parameters, self.dtype)
        bounds = flatten(errors)
        return {
            "loss": {"": Approx(loss, error)},
            "gradients": {path: Approx(np.asarray(value), bounds[path]) for path, value in flatten(gradients).items()},
            "predictions": {"": Approx(*carried_bound(self.predicted, self.parameters, self.dtype))},
        }


def adam_at(settings: RunSettings, step: int) -> Adam:
    """The numbers of a step of Adam, with the definition's learning rate."""
    return Adam(float(settings.rate(PACKAGES["reference_numpy"], step)), **settings.adam)


def expected(
    settings: RunSettings, given: Given, model: dict[str, Bounded], answer: Mapping[str, Any], dtype: str
) -> dict[str, Bounded]:
    """All quantities of a step that an implementation answers like that, and computes in that dtype.

    model: what `Model` says of it. answer: trees of NumPy arrays by quantity.
    """
    state, p = given.state, Precision.make(dtype)
    gradients = answered(answer, "gradients", model["gradients"])
    small, norm = clipped(gradients, settings.clip, p)
    options = adam_at(settings, state.step)
    rate = {"": Approx(np.asarray(options.learning_rate), np.asarray(RATE * p.inner * options.learning_rate))}
    options = options._replace(learning_rate=float(answered(answer, "learning rate", rate)[""].value))
    parameters, mean, square = ({path: exact(a) for path, a in flatten(tree).items()} for tree in state[:3])
    moved = adam(parameters, answered(answer, "clipped gradients", small), mean, square, state.step, options, p)
    found = {"norm": {"": norm}, "clipped gradients": small, "learning rate": rate, **moved._asdict()}
    if dtype == "float64":  # in which the definition's are computed, too, and are as far off themselves
        found = {name: {path: Approx(a.value, 2 * a.error) for path, a in tree.items()} for name, tree in found.items()}
    arguments = {path: exact(array) for path, array in flatten(state[:3]).items()}
    return {"arguments": arguments, **model, **found}


def answered(answer: Mapping[str, Any], quantity: str, definition: Bounded) -> Bounded:
    """What an implementation says of a quantity, if one can compute with that, else what the definition says."""
    arrays = paths_of(answer.get(quantity))
    if arrays.keys() != definition.keys():
        return definition
    fits = all(np.shape(a) == definition[path].value.shape and np.isfinite(a).all() for path, a in arrays.items())
    return {path: exact(array) for path, array in arrays.items()} if fits else definition


def paths_of(tree: Tree) -> dict[str, Any]:
    """Arrays by path; a dictionary has the paths already."""
    return dict(tree) if isinstance(tree, Mapping) else flatten(tree)
