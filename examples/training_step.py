"""A training step of one's own, to be compared with the definition's: PyTorch's loss, clipping and Adam.

    python -m training lockstep --subject examples/training_step.py:step

names the clipped gradients: `torch.nn.utils.clip_grad_norm_` divides by the norm plus 1e-6. All else is within its
bound. The model is that of a port; any other is called in the same way.
"""

from __future__ import annotations

from typing import Any

import torch

import torch_impl
from specification.checkpoints import flatten
from specification.parameters import mapped
from training.lockstep.bounds import Adam
from training.lockstep.expected import Given
from training.packages import PACKAGES
from training.task import Task


def step(given: Given, task: Task, adam: Adam, clip: float) -> dict[str, Any]:
    """Take one step from what is given, and tell what came of it, as NumPy arrays."""
    package = PACKAGES["torch_impl"]
    parameters, mean, square = package.arrays(given.state[:3])
    batch, dropout = package.arrays((given.batch, given.dropout))
    tensors = flatten(mapped(torch.Tensor.requires_grad_, parameters))

    optimizer = torch.optim.Adam(
        tensors.values(), adam.learning_rate, betas=(adam.beta_1, adam.beta_2), eps=adam.eps, weight_decay=0
    )
    means, squares = flatten(mean), flatten(square)
    for path, tensor in tensors.items():
        count = torch.tensor(float(given.state.step))
        optimizer.state[tensor] = {"step": count, "exp_avg": means[path], "exp_avg_sq": squares[path]}

    logits = torch_impl.transformer(parameters, *batch.inputs, configuration=task.configuration, dropout=dropout)
    options = dict(task.loss_options)
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1),
        batch.targets.flatten(),
        ignore_index=options["ignore"],
        label_smoothing=options["label_smoothing"],
    )
    loss.backward()
    told: dict[str, Any] = {"loss": loss, "gradients": gradients_of(tensors)}
    told["norm"] = torch.nn.utils.clip_grad_norm_(tensors.values(), clip)
    told["clipped gradients"] = gradients_of(tensors)
    optimizer.step()
    told |= {name: {path: optimizer.state[t][key] for path, t in tensors.items()} for name, key in AVERAGES.items()}
    return package.numbers(told | {"parameters": tensors})


AVERAGES = {"mean": "exp_avg", "square": "exp_avg_sq"}


def gradients_of(tensors: dict[str, Any]) -> dict[str, Any]:
    return {path: torch.clone(tensor.grad) for path, tensor in tensors.items()}
