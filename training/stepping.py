"""One step of training: loss, gradients, clipping, Adam at a rate that grows linearly at first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.models.instrumentation import visited
from specification.checkpoints import flatten
from training.packages import Package
from training.settings import Settings
from training.task import Batch, Task


class Advance(NamedTuple):
    """What a step gives: the package's trees, and numbers of Python's.

    norm: of the gradients before they were clipped. right: how many of the batch's labels were found.
    """

    parameters: Any
    state: Any
    loss: float
    norm: float
    rate: float
    right: int


def learning_rate(package: Package, settings: Settings, step: int) -> float:
    """The rate of a step: that of the settings times min(step / warmup, 1), as the tutorial's scheduler has it.

    So the first step, step 0, moves nothing. `linear_warmup` counts from 0 and moves at once.
    """
    if step == 0:
        return 0.0
    with package.context():
        return settings.learning_rate * float(package.module.linear_warmup(step - 1, steps=settings.warmup))


def advance(
    package: Package, settings: Settings, parameters: Any, state: Any, batch: Batch, dropout: Any, step: int
) -> Advance:
    """Take a step.

    Args:
        package: that computes it.
        settings: of the run.
        parameters, state: the package's trees.
        batch, dropout: NumPy arrays.
        step: how many were taken before.

    Raises:
        FloatingPointError: for a loss or gradients that are not finite; it names the step, counted from 1, and
            the first such tensor.
    """
    task = settings.task()
    found = package.step(task, parameters, batch, dropout)
    gradients, norm = package.clip(found.gradients, settings.clip)
    loss, rate = float(found.loss), learning_rate(package, settings, step)
    if not (np.isfinite(loss) and np.isfinite(float(norm))):
        where = first_not_finite(package, task, parameters, batch, dropout, found.gradients)
        raise FloatingPointError(f"step {step + 1}: the loss is {loss}; the first tensor that is not finite is {where}")
    parameters, state = package.adam_step(parameters, gradients, state, learning_rate=rate)
    right = int(np.sum(package.numbers(found.output).argmax(axis=1) == batch.targets))
    return Advance(parameters, state, loss, float(norm), rate, right)


def first_not_finite(package: Package, task: Task, parameters: Any, batch: Batch, dropout: Any, gradients: Any) -> str:
    """Name the first tensor with NaN or infinity: a parameter, a step of the model, or a gradient."""

    def not_finite(tree: Any) -> list[str]:
        numbers = flatten(package.numbers(tree))
        return [name for name, array in numbers.items() if not np.isfinite(array).all()]

    found = [f"the parameter {name}" for name in not_finite(parameters)]

    def visit(name: str, kind: str, function: Any, arguments: Any, keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        if not_finite(result):
            found.append(f"the result of {name}")
        return result

    if not found:
        model = visited(package.name, parameters, visit).MODELS[type(parameters)]
        with package.context():
            batch, dropout = package.arrays((batch, dropout))
            package.output(task, parameters, batch, dropout, model)
    found += [f"the gradient of {name}" for name in not_finite(gradients)]
    return found[0] if found else "the loss"
