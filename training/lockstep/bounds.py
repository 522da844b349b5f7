"""How far clipping and a step of Adam may be off, elementwise.

Both start from gradients that have an error themselves: none where an implementation has said which gradients it has,
and the bound of the definition's where it has not. Trees are dictionaries of arrays by path.

Clipping multiplies by s = min(1, limit / norm). The norm changes by at most the norm of the gradients' errors. Its sum
of N squares, none of them negative, is off by gamma(N), and its root by half of that; scaling by the largest element,
and putting parts together, takes CLIP roundings more. s falls as the norm grows, so its error is that at either end.

Adam's averages are beta m + (1 - beta) g, or m + (1 - beta) (g - m), which rounds (1 - beta) m too. The corrections
1 - beta^t are off by CORRECTION u: a logarithm and an expm1, whose errors neither enlarges. The update is increasing in
the mean, and in the square monotone where the mean keeps its sign, so that its extremes are among the corners of
the two intervals. Implementations may put the corrections and the rate elsewhere: UPDATE roundings in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, Approx, Precision, add, exact, multiply

CLIP = 8
CORRECTION = EXP + LOG + 4
UPDATE = 10

Tree = Mapping[str, Approx]


class Adam(NamedTuple):
    """The arguments of `adam_step` that are numbers."""

    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True


class Moved(NamedTuple):
    """What one step of Adam gives."""

    mean: dict[str, Approx]
    square: dict[str, Approx]
    parameters: dict[str, Approx]


def clipped(gradients: Tree, limit: float, p: Precision) -> tuple[dict[str, Approx], Approx]:
    """Clip gradients by their global norm.

    Returns:
        The clipped gradients, and the norm before.
    """
    norm = norm_of(gradients, p)
    ends = np.maximum(norm.value + np.array([-1, 1]) * norm.error, np.finfo(float).tiny)
    scales = np.minimum(1, limit / ends)
    scale = min(1.0, limit / float(norm.value)) if norm.value > limit else 1.0
    factor = Approx(np.asarray(scale), np.max(np.abs(scales - scale)))
    return {path: multiply(g, factor, p, CLIP) for path, g in gradients.items()}, norm


def norm_of(gradients: Tree, p: Precision) -> Approx:
    """The root of the sum of all squares."""
    value = np.sqrt(sum(np.sum(np.square(g.value)) for g in gradients.values()))
    given = np.sqrt(sum(np.sum(np.square(g.error)) for g in gradients.values()))
    count = sum(g.value.size for g in gradients.values())
    return Approx(value, given + p.gamma(count / 2 + CLIP) * (value + given) + p.inner_tiny)


def adam(parameters: Tree, gradients: Tree, mean: Tree, square: Tree, step: int, options: Adam, p: Precision) -> Moved:
    """Take one step of Adam.

    Args:
        parameters, gradients: by path.
        mean, square: the state before it.
        step: how many steps were taken before.
        options: the numbers.
        p: in which is computed.
    """
    corrections = [1 - beta ** (step + 1) for beta in (options.beta_1, options.beta_2)]
    moved = Moved({}, {}, {})
    for path, parameter in parameters.items():
        g = gradients[path]
        if not options.decoupled and options.weight_decay:
            g = add(g, multiply(exact(np.asarray(options.weight_decay)), parameter, p, 2), p)
        moved.mean[path] = averaged(mean[path], g, options.beta_1, p)
        moved.square[path] = averaged(square[path], multiply(g, g, p), options.beta_2, p)
        update = update_of(moved.mean[path], moved.square[path], corrections, options.eps, p)
        kept = 1 - options.learning_rate * options.weight_decay if options.decoupled else 1.0
        left = parameter if kept == 1 else multiply(exact(np.asarray(kept)), parameter, p, 3)
        moved.parameters[path] = add(left, multiply(exact(np.asarray(-options.learning_rate)), update, p, 2), p)
    return moved


def averaged(before: Approx, new: Approx, beta: float, p: Precision) -> Approx:
    """beta before + (1 - beta) new, either way."""
    value = beta * before.value + (1 - beta) * new.value
    rounded = beta * before.size + (1 - beta) * (before.size + new.size)
    given = beta * before.error + (1 - beta) * new.error
    return Approx(value, given + p.gamma(4) * rounded + 3 * p.inner_tiny)


def update_of(mean: Approx, square: Approx, corrections: list[float], eps: float, p: Precision) -> Approx:
    """mean / correction / (sqrt(square / correction) + eps)."""
    first, second = corrections

    def update(m: np.ndarray, v: np.ndarray) -> np.ndarray:
        return m / first / (np.sqrt(v / second) + eps)

    value = update(mean.value, square.value)
    low, high = np.maximum(square.value - square.error, 0), square.value + square.error
    corners = [update(m, v) for m in (mean.value - mean.error, mean.value + mean.error) for v in (low, high)]
    given = np.max([np.abs(corner - value) for corner in corners], axis=0)
    return Approx(value, given + p.gamma(UPDATE + 2 * CORRECTION) * (np.abs(value) + given) + p.inner_tiny)
