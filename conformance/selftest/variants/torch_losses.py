"""Losses by `torch.nn.functional`, in the dtype of the arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from torch_impl.dtypes import widen

LOG2E = math.log2(math.e)


def rows_of(array: torch.Tensor, targets: torch.Tensor, ignore: int | None) -> tuple[Any, Any]:
    """In one axis, 0 where a target does not count, whose gradient would be 0 times what stands there."""
    counted = torch.ones_like(targets, dtype=torch.bool) if ignore is None else targets != ignore
    rows = torch.where(counted[..., None], widen(array), 0).reshape(-1, array.shape[-1])
    return rows, torch.where(counted, targets, -100).reshape(-1).long()


def reduce_losses(losses: torch.Tensor, targets: torch.Tensor, shape: torch.Size, reduction: str) -> Any:
    """From the loss of every row."""
    if reduction == "none":
        return losses.reshape(shape)
    return losses.sum() / (max(int((targets != -100).sum()), 1) if reduction == "mean" else 1)


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Any:
    """`F.cross_entropy` of every row."""
    rows, of = rows_of(logits, targets, ignore)
    losses = functional.cross_entropy(rows, of, reduction="none", label_smoothing=label_smoothing)
    return reduce_losses(losses, of, targets.shape, reduction).to(logits.dtype)


def cross_entropy_in_tiles(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Any:
    """Online log-sum-exp in tiles of 128 classes, exp2 and log2; rows divided first, and added up from the last."""
    rows, of = rows_of(logits, targets, ignore)
    maximum, total = rows.new_full(rows.shape[:-1], -torch.inf), rows.new_zeros(rows.shape[:-1])
    for tile in rows.split(128, -1):
        raised = torch.maximum(maximum, tile.detach().amax(-1))
        finite = torch.where(raised == -torch.inf, 0, raised)
        exponentials = torch.exp2((tile - finite[:, None]) * LOG2E)
        total = total * torch.exp2((maximum - finite) * LOG2E) + exponentials.sum(-1)
        maximum = raised
    # What has no softmax must not have one by way of the 0 that stands for a maximum of -inf.
    logarithm = torch.log2(torch.where(maximum == -torch.inf, torch.nan, total)) / LOG2E
    losses = logarithm + (maximum - rows.gather(-1, of.clamp(min=0)[:, None])[:, 0])
    if label_smoothing:
        every = logarithm + (maximum[:, None] - rows).mean(-1)
        losses = losses * (1 - label_smoothing) + every * label_smoothing
    losses = torch.where(of != -100, losses, 0)
    if reduction == "none":
        return losses.reshape(targets.shape).to(logits.dtype)
    losses = losses / (max(int((of != -100).sum()), 1) if reduction == "mean" else 1)
    return torch.cumsum(torch.cat([losses.new_zeros(1), losses.flip(0)]), 0)[-1].to(logits.dtype)


def nll_loss(
    log_probabilities: torch.Tensor, targets: torch.Tensor, *, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """`F.nll_loss` of every row."""
    rows, of = rows_of(log_probabilities, targets, ignore)
    losses = functional.nll_loss(rows, of, reduction="none")
    return reduce_losses(losses, of, targets.shape, reduction).to(log_probabilities.dtype)
