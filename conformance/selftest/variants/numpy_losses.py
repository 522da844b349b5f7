"""Losses in NumPy over tiles of classes, and with sums one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.cases.declaration import declare
from specification.dtypes import compute_dtype_name, dtype_name

TILE = 128
"""Classes."""
LOG2_E = math.log2(math.e)


def prepared(logits: Any, targets: Any, ignore: int | None) -> tuple[Any, Any, Any]:
    """Logits in the compute dtype, 0 in rows that do not count; which count, and their classes."""
    counted = np.ones(targets.shape, bool) if ignore is None else targets != ignore
    wide = logits.astype(compute_dtype_name(dtype_name(logits)))
    return np.where(counted[..., None], wide, 0), counted, np.where(counted, targets, 0).astype(np.int64)


def running(x: Any) -> tuple[Any, Any]:
    """The maximum of each row, and the sum of exp2((x - maximum) log2(e)), tile by tile."""
    c = x.dtype.type(LOG2_E)
    maximum, total = np.full(x.shape[:-1], -np.inf, x.dtype), np.zeros(x.shape[:-1], x.dtype)
    for start in range(0, x.shape[-1], TILE):
        tile = x[..., start : start + TILE]
        new = np.maximum(maximum, tile.max(-1))
        safe = np.where(new == -np.inf, 0, new)
        total = total * np.exp2((maximum - safe) * c) + np.exp2((tile - safe[..., None]) * c).sum(-1)
        maximum = new
    # What has no softmax must not have one by way of the 0 that stands for a maximum of -inf.
    return maximum, np.where(maximum == -np.inf, np.nan, total)


def one_by_one(numbers: Any) -> Any:
    """The sum from the last number to the first."""
    flat = numbers.ravel()[::-1]
    return np.cumsum(flat, dtype=flat.dtype)[-1] if flat.size else flat.dtype.type(0)


@np.errstate(all="ignore")
def tiled_vjp(
    logits: Any, targets: Any, cotangent: Any, *, label_smoothing: float = 0.0, ignore: int | None = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """exp2(s log2(e) - log2(total)) less the mixed target, each times what the row receives."""
    x, counted, classes = prepared(logits, targets, ignore)
    maximum, total = running(x)
    c, V = x.dtype.type(LOG2_E), x.shape[-1]
    weights = np.exp2((x - maximum[..., None]) * c - np.log2(total)[..., None])
    bar = np.asarray(cotangent).astype(x.dtype) * (
        1 / x.dtype.type(max(counted.sum(), 1)) if reduction == "mean" else 1
    )
    bar = np.where(counted, bar, 0)[..., None]
    hot = classes[..., None] == np.arange(V)
    gradient = weights * bar - np.where(hot, (1 - label_smoothing) * bar, 0)
    gradient = gradient - label_smoothing / V * bar if label_smoothing else gradient
    return {"logits": np.where(counted[..., None], gradient, 0).astype(logits.dtype)}


@declare(vjp=tiled_vjp)
@np.errstate(all="ignore")
def tiled(
    logits: Any, targets: Any, *, label_smoothing: float = 0.0, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """Online log-sum-exp in tiles, exp2 and log2; rows added up one by one, each divided first for a mean."""
    x, counted, classes = prepared(logits, targets, ignore)
    maximum, total = running(x)
    logarithm = np.log2(total) * x.dtype.type(math.log(2))
    losses = logarithm + (maximum - np.take_along_axis(x, classes[..., None], -1)[..., 0])
    if label_smoothing:
        every = logarithm + (maximum[..., None] - x).mean(-1)
        losses = losses * (1 - label_smoothing) + every * label_smoothing
    losses = np.where(counted, losses, 0)
    if reduction == "mean":
        losses = losses * (1 / x.dtype.type(max(counted.sum(), 1)))
    return np.asarray(losses if reduction == "none" else one_by_one(losses), logits.dtype)
