"""One step of training: loss, gradients, clipping, Adam at the rate of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.models.instrumentation import instrument_package
from specification.checkpoints import flatten
from training.packages import Package
from training.task import Batch, RunSettings, Task

if TYPE_CHECKING:
    from specification.dropout import StackDropout, TransformerDropout
    from specification.optimizers import AdamState
    from specification.parameters import ModelParameters, Tree


class Advance(NamedTuple):
    """What a step gives: the package's trees, and numbers of Python's.

    norm: of the gradients before they were clipped. accuracy: the share of the targets that were found.
    """

    parameters: Any
    state: Any
    loss: float
    norm: float
    rate: float
    accuracy: float


def advance(
    package: Package,
    settings: RunSettings,
    parameters: ModelParameters,
    state: AdamState,
    batch: Batch,
    dropout: StackDropout | TransformerDropout | None,
    step: int,
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
    with package.context():
        loss, rate = float(found.loss), float(settings.rate(package, step))
    if not (np.isfinite(loss) and np.isfinite(float(norm))):
        where = first_not_finite(package, task, parameters, batch, dropout, found.gradients)
        raise FloatingPointError(f"step {step + 1}: the loss is {loss}; the first tensor that is not finite is {where}")
    parameters, state = package.adam_step(parameters, gradients, state, learning_rate=rate, **settings.adam)
    right = package.numbers(found.output).argmax(axis=-1) == batch.targets
    return Advance(parameters, state, loss, float(norm), rate, float(np.mean(right[task.counted(batch.targets)])))


def first_not_finite(
    package: Package,
    task: Task,
    parameters: ModelParameters,
    batch: Batch,
    dropout: StackDropout | TransformerDropout | None,
    gradients: Tree,
) -> str:
    """Name the first tensor with NaN or infinity: a parameter, a step of the model, or a gradient."""

    def not_finite(tree: Tree) -> list[str]:
        numbers = flatten(package.numbers(tree))
        return [name for name, array in numbers.items() if not np.isfinite(array).all()]

    found = [f"the parameter {name}" for name in not_finite(parameters)]

    def visit(
        name: str, kind: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        result = function(*arguments, **keywords)
        if not_finite(result):
            found.append(f"the result of {name}")
        return result

    if not found:
        model = instrument_package(package.name, parameters, visit).MODELS[type(parameters)]
        with package.context():
            batch, dropout = package.arrays((batch, dropout))
            package.output(task, parameters, batch, dropout, model)
    found += [f"the gradient of {name}" for name in not_finite(gradients)]
    return found[0] if found else "the loss"
