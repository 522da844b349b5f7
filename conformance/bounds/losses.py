"""Error bounds of losses. All errors are in units of u, unless they have a name.

Rows. With s_j = x_j - max, which is off by |s_j|, an exponential exp(s_j) is off by EXP + |s_j|, relatively, and by
2 |s_j| more as exp2(s_j log2(e)). The sum T of V exponentials, which is 1 at least, adds gamma(V). A running maximum,
over tiles of 16 classes at least, multiplies exponentials whose arguments have |s_j| in all. It rounds EXP + 1 for
each tile but the first, and adds up 16 numbers and as many as there are tiles: in all V and TILED roundings at most.
With r_T the relative error of T, log T is off by r_T / (1 - r_T) and by (LOG + 2) log T, also as log2(T) log(2).

Losses. log T - s_t rounds once more, so that a row's loss is off by that, by |s_t| and by itself. With smoothing, the
mean M of the -s_j, or the sum of the mixed targets times log-probabilities, is off by gamma(V) and 3 roundings of
M + log T, and mixing the two by 4 roundings of the result. A sum of losses adds up numbers that are off by as much, in
any order: gamma(rows) of the sum of their sizes. A mean rounds twice more.

Gradients. A weight p_j, as exp(s_j) / T or as exp(s_j - log T), is off by 2 EXP + 4 |s_j| + 2 log T + 4 and by what
log T is off by, relatively. What a row receives is c: the cotangent, rounded twice when it is divided by the number of
targets that count. The gradient c (p - q) is p - q times c, or c p less c q, where automatic differentiation adds up
c q over the V classes first if there is smoothing: V roundings of p. All products and differences round 8 times, of
|c| (p + q) at most.

Numbers too small to be normal may be lost: each exponential, and each term of a gradient.

A log-sum-exp kept as one number, max + log T, is off by its own size, whatever the loss. `relaxed` allows for it, in
the loss and in exp(x - log-sum-exp); `strict` does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, Approx, Precision, total
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case

TILED = 8.0
"""Two tiles of 17 classes add up 16 + 2 numbers, and rescale once: 18 + EXP + 1 roundings, 8 more than V. More classes
in tiles of 16 or more have less beyond V."""
FAR = 2.0**12
"""From here on an exponential exp(-FAR) is 0."""


class Row(NamedTuple):
    """Of every row: s [..., V], exp(s) / T, log T [..., 1], and the absolute error of log T."""

    shifted: np.ndarray
    weights: np.ndarray
    logarithm: np.ndarray
    error: np.ndarray


def counted_targets(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Which targets count, and the class of each, 0 for one that does not."""
    targets, ignore = case.inputs["targets"], case.options.get("ignore")
    counted = np.ones(targets.shape, bool) if ignore is None else np.asarray(targets != ignore)
    return counted, np.where(counted, targets, 0).astype(np.int64)


def take_classes(array: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return np.take_along_axis(array, classes[..., None], axis=-1)


def smooth_targets(classes: np.ndarray, count: int, smoothing: float) -> np.ndarray:
    """(1 - s) one-hot + s / V."""
    return (classes[..., None] == np.arange(count)) * (1 - smoothing) + smoothing / count


def rows_of(logits: np.ndarray, p: Precision, kept: bool) -> Row:
    """kept: the log-sum-exp is one number."""
    maximum = np.max(logits, axis=-1, keepdims=True)
    shifted = logits - maximum
    size = np.minimum(np.abs(shifted), FAR)
    exponentials = np.exp(shifted)
    T = np.sum(exponentials, axis=-1, keepdims=True)
    terms = p.inner * (EXP + TILED + 3 * size) * exponentials + p.inner_tiny
    relative = (np.sum(terms, axis=-1, keepdims=True) + p.gamma(logits.shape[-1]) * T) / T
    logarithm = np.log(T)
    error = relative / (1 - relative) + p.inner * (LOG + 2) * logarithm
    if kept:
        error = error + 2 * p.inner * (np.abs(maximum) + np.abs(maximum + logarithm))
    return Row(shifted, exponentials / T, logarithm, error)


def row_losses(row: Row, classes: np.ndarray, smoothing: float, p: Precision) -> Approx:
    of_target = -take_classes(row.shifted, classes)
    value = row.logarithm + of_target
    error = row.error + p.inner * (of_target + value)
    if smoothing > 0:
        mean = row.logarithm - np.mean(row.shifted, axis=-1, keepdims=True)
        steps = p.gamma(row.shifted.shape[-1] + 3)
        value, error = (
            (1 - smoothing) * value + smoothing * mean,
            (1 - smoothing) * error + smoothing * (row.error + (steps + p.inner) * mean),
        )
        error = error + 4 * p.inner * value
    return Approx(value[..., 0], error[..., 0] + p.inner_tiny)


def reduce_losses(losses: Approx, counted: np.ndarray, case: Case, p: Precision) -> Approx:
    value, error = (np.where(counted, array, 0) for array in losses)
    reduction = case.options.get("reduction", "mean")
    if reduction == "none":
        return Approx(value, error)
    added = total(Approx(value.reshape(-1), error.reshape(-1)), 0, p)
    if reduction == "sum":
        return added
    count = max(int(counted.sum()), 1)
    return Approx(added.value / count, added.error / count + 2 * p.inner * added.size / count + p.inner_tiny)


def row_cotangents(case: Case, counted: np.ndarray) -> np.ndarray:
    """c of every row, [..., 1]."""
    bar = np.asarray(case.cotangents["output"], float)
    share = bar / max(int(counted.sum()), 1) if case.options.get("reduction", "mean") == "mean" else bar
    return np.asarray(np.broadcast_to(share, counted.shape)[..., None])


def row_gradients(row: Row, c: np.ndarray, q: np.ndarray, smoothing: float, p: Precision) -> Approx:
    size = np.minimum(np.abs(row.shifted), FAR)
    relative = p.inner * (2 * EXP + 4 * size + 2 * row.logarithm + 4) + row.error
    if smoothing > 0:
        relative = relative + p.gamma(row.shifted.shape[-1])
    off = row.weights * relative + 8 * p.inner * (row.weights + q)
    value = c * (row.weights - q)
    return Approx(value, np.abs(c) * off + p.inner * np.abs(value) + 4 * (1 + np.abs(c)) * p.inner_tiny)


def cross_entropy(case: Case, p: Precision, kept: bool = False) -> dict[str, Approx]:
    counted, classes = counted_targets(case)
    logits = np.where(counted[..., None], np.asarray(case.inputs["logits"], float), 0)
    smoothing = case.options.get("label_smoothing", 0.0)
    row = rows_of(logits, p, kept)
    results = {"output": reduce_losses(row_losses(row, classes, smoothing, p), counted, case, p)}
    if not case.cotangents:
        return results
    gradient = row_gradients(
        row, row_cotangents(case, counted), smooth_targets(classes, logits.shape[-1], smoothing), smoothing, p
    )
    return results | {gradient_name("logits"): Approx(*(np.where(counted[..., None], a, 0) for a in gradient))}


def nll_loss(case: Case, p: Precision) -> dict[str, Approx]:
    """Numbers are copied; a sum or mean of them is rounded, and a mean's cotangent is divided."""
    counted, classes = counted_targets(case)
    numbers = np.asarray(case.inputs["log_probabilities"], float)
    losses = -take_classes(numbers, classes)[..., 0]
    results = {"output": reduce_losses(Approx(losses, np.zeros_like(losses)), counted, case, p)}
    if not case.cotangents:
        return results
    value = -row_cotangents(case, counted) * smooth_targets(classes, numbers.shape[-1], 0.0) * counted[..., None]
    divided = 2 * p.inner * np.abs(value) + p.inner_tiny * (value != 0)
    error = divided if case.options.get("reduction", "mean") == "mean" else np.zeros_like(value)
    return results | {gradient_name("log_probabilities"): Approx(value, error)}
