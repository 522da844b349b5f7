"""Losses by `torch.nn.functional`, in the dtype of the arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from torch_impl.dtypes import widen


def rows_of(array: Any, targets: Any, ignore: int | None) -> tuple[Any, Any]:
    """In one axis, 0 where a target does not count, whose gradient would be 0 times what stands there."""
    counted = torch.ones_like(targets, dtype=torch.bool) if ignore is None else targets != ignore
    rows = torch.where(counted[..., None], widen(array), 0).reshape(-1, array.shape[-1])
    return rows, torch.where(counted, targets, -100).reshape(-1).long()


def reduced(losses: Any, targets: Any, shape: Any, reduction: str) -> Any:
    """From the loss of every row."""
    if reduction == "none":
        return losses.reshape(shape)
    return losses.sum() / (max(int((targets != -100).sum()), 1) if reduction == "mean" else 1)


def cross_entropy(
    logits: Any, targets: Any, *, label_smoothing: float = 0.0, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """`F.cross_entropy` of every row."""
    rows, of = rows_of(logits, targets, ignore)
    losses = functional.cross_entropy(rows, of, reduction="none", label_smoothing=label_smoothing)
    return reduced(losses, of, targets.shape, reduction).to(logits.dtype)


def by_log_softmax(
    logits: Any, targets: Any, *, label_smoothing: float = 0.0, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """The mixed target times `log_softmax`, of the classes that have a share."""
    rows, of = rows_of(logits, targets, ignore)
    V = rows.shape[-1]
    mixed = functional.one_hot(of.clamp(min=0), V).to(rows.dtype) * (1 - label_smoothing) + label_smoothing / V
    logarithms = functional.log_softmax(rows, -1)
    losses = -torch.where(mixed != 0, mixed * logarithms, 0).sum(-1)
    losses = torch.where(of != -100, losses, 0)
    return reduced(losses, of, targets.shape, reduction).to(logits.dtype)


def nll_loss(log_probabilities: Any, targets: Any, *, ignore: int | None = None, reduction: str = "mean") -> Any:
    """`F.nll_loss` of every row."""
    rows, of = rows_of(log_probabilities, targets, ignore)
    losses = functional.nll_loss(rows, of, reduction="none")
    return reduced(losses, of, targets.shape, reduction).to(log_probabilities.dtype)
