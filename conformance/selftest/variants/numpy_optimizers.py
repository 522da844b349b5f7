"""Optimizers and clipping in NumPy, written in other ways than the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reference_numpy.dtypes import widen
from specification.optimizers import AdamState, SgdState


def towards(old: np.ndarray, new: np.ndarray, beta: float) -> Any:
    """beta old + (1 - beta) new by their difference, times the smaller factor; infinity as it is."""
    rest = 1 - beta
    difference = new - old
    moved = old + rest * difference if rest < 0.5 else new - beta * difference
    return np.where(np.isfinite(difference), moved, beta * old + rest * new)


def correction(beta: float, step: int) -> float:
    """1 - beta^step."""
    return -math.expm1(step * math.log(beta)) if beta else 1.0


@np.errstate(all="ignore")
def adam_by_differences(
    parameters: np.ndarray, gradients: np.ndarray, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """The root and the learning rate are corrected, not the averages; the decay is a term beside the update."""
    wide, gradient = widen(parameters), widen(gradients)
    if not decoupled:
        gradient = gradient + weight_decay * wide
    mean, square = towards(state.mean, gradient, beta_1), towards(state.square, gradient * gradient, beta_2)
    first, second = (correction(beta, state.step + 1) for beta in (beta_1, beta_2))
    moved = learning_rate / first * mean * (1 / (np.sqrt(square) / math.sqrt(second) + eps))
    if decoupled:
        moved = moved + learning_rate * weight_decay * wide
    return (wide - moved).astype(parameters.dtype), AdamState(state.step + 1, mean, square)


@np.errstate(all="ignore")
def sgd_written_out(
    parameters: np.ndarray, gradients: np.ndarray, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
) -> Any:  # fmt: skip
    """Nesterov as gradient (1 + momentum) + momentum^2 velocity."""
    wide = widen(parameters)
    gradient = widen(gradients) + weight_decay * wide if weight_decay else widen(gradients)
    velocity = momentum * state.velocity + gradient
    ahead = (1 + momentum) * gradient + momentum * momentum * state.velocity
    return (wide - learning_rate * (ahead if nesterov else velocity)).astype(parameters.dtype), SgdState(velocity)


@np.errstate(all="ignore")
def clip_by_norms_of_arrays(gradients: list[np.ndarray], limit: float) -> Any:
    """The norm of the arrays' norms, of squares one after the other; gradients are divided by the largest element."""
    wide = [widen(array) for array in gradients]
    largest = np.max([np.max(np.abs(array), initial=0) for array in wide])
    if not np.isfinite(largest) or largest == 0:
        return [array.copy() for array in gradients], np.asarray(largest)
    norms = np.array([np.sqrt(np.cumsum(np.square(array / largest))[-1:].sum()) for array in wide])
    ratio = np.sqrt(np.sum(norms**2))
    norm = largest * ratio
    if not norm > limit:
        return [array.copy() for array in gradients], np.asarray(norm)
    scaled = [(a / largest * (limit / ratio)).astype(g.dtype) for a, g in zip(wide, gradients, strict=True)]
    return scaled, np.asarray(norm)
