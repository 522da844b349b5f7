"""Right optimizers and right clipping in NumPy, in steps that can be replaced."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from conformance.selftest.faults.right_numpy import Function, widen
from specification.optimizers import AdamState, SgdState

# --- Adam -------------------------------------------------------------------------------------------------------------


def averaged(old: Any, new: Any, beta: float) -> Any:
    return beta * old + (1 - beta) * new


def correction(beta: float, step: int) -> float:
    """1 - beta^t."""
    return -math.expm1(step * math.log(beta)) if beta > 0 else 1.0


def update(mean: Any, square: Any, eps: float) -> Any:
    return mean / (np.sqrt(square) + eps)


class Adam(NamedTuple):
    """Every step of Adam under the name by which a fault replaces it.

    late: which averages move the parameters. largest: the average of the squares. stored: how averages are kept.
    """

    widened: Function = widen
    number: Function = lambda step: step + 1
    coupled: Function = lambda decoupled: not decoupled
    averaged: Function = averaged
    squared: Function = lambda gradient, mean: gradient * gradient
    largest: Function = averaged
    stored: Function = lambda array, dtype: array
    late: Function = lambda old, new: new
    correction: Function = correction
    eps: Function = lambda eps, correction: eps
    update: Function = update
    kept: Function = lambda rate, decay: 1 - rate * decay


def adam_by(s: Adam) -> Function:
    """`adam_step` of single arrays, in these steps."""

    @np.errstate(all="ignore")
    def adam_step(
        parameters: Any, gradients: Any, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
        beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
    ) -> Any:  # fmt: skip
        gradient, coupled = s.widened(gradients), s.coupled(decoupled)
        if coupled and weight_decay:
            gradient = gradient + weight_decay * widen(parameters)
        mean = s.stored(s.averaged(state.mean, gradient, beta_1), parameters.dtype)
        square = s.stored(s.largest(state.square, s.squared(gradient, mean), beta_2), parameters.dtype)
        step = s.number(state.step)
        first, second = s.correction(beta_1, step), s.correction(beta_2, step)
        moving = s.late(state.mean, mean) / first, s.late(state.square, square) / second
        moved = learning_rate * s.update(*moving, s.eps(eps, second))
        kept = 1.0 if coupled else s.kept(learning_rate, weight_decay)
        new = (kept * widen(parameters) - moved).astype(parameters.dtype)
        return new, AdamState(step, mean, square)

    return adam_step


# --- gradient descent -------------------------------------------------------------------------------------------------


class Sgd(NamedTuple):
    """Every step of gradient descent under the name by which a fault replaces it."""

    decayed: Function = lambda g, parameter, decay: g + decay * parameter if decay else g
    velocity: Function = lambda old, g, momentum: momentum * old + g
    nesterov: Function = lambda g, old, new, momentum: g + momentum * new
    moved: Function = lambda parameter, update, rate: (widen(parameter) - rate * update).astype(parameter.dtype)


def sgd_by(s: Sgd) -> Function:
    """`sgd_step` of single arrays, in these steps."""

    @np.errstate(all="ignore")
    def sgd_step(
        parameters: Any, gradients: Any, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
        nesterov: bool = False, weight_decay: float = 0.0,
    ) -> Any:  # fmt: skip
        gradient = s.decayed(widen(gradients), widen(parameters), weight_decay)
        velocity = s.velocity(state.velocity, gradient, momentum)
        update = s.nesterov(gradient, state.velocity, velocity, momentum) if nesterov else velocity
        return s.moved(parameters, update, learning_rate), SgdState(velocity)

    return sgd_step


# --- clipping ---------------------------------------------------------------------------------------------------------


def norm(arrays: Any) -> Any:
    """Of all elements, each divided by the largest before it is squared."""
    largest = np.max([np.max(np.abs(array)) for array in arrays])
    if not np.isfinite(largest) or largest == 0:
        return largest
    return largest * np.sqrt(sum(np.sum(np.square(array / largest)) for array in arrays))


class Clipping(NamedTuple):
    """Every step of clipping under the name by which a fault replaces it.

    together: the arrays whose norm an array is scaled by. untouched: whether nothing is scaled for such a norm.
    """

    norm: Function = norm
    together: Function = lambda array, arrays: arrays
    untouched: Function = lambda norm: not np.isfinite(norm)
    factor: Function = lambda norm, limit: limit / norm if norm > limit else 1.0
    scaled: Function = lambda array, factor: (widen(array) * factor).astype(array.dtype)
    reported: Function = lambda norm, limit: norm


def clip_by(s: Clipping) -> Function:
    """`clip_by_global_norm` of a list, in these steps."""

    @np.errstate(all="ignore")
    def clip_by_global_norm(gradients: Any, limit: float) -> Any:
        wide = [widen(array) for array in gradients]
        whole = s.norm(wide)
        norms = [s.norm(s.together(array, wide)) for array in wide]
        factors = [1.0 if s.untouched(n) else s.factor(n, limit) for n in norms]
        scaled = [s.scaled(array, factor) for array, factor in zip(gradients, factors, strict=True)]
        return scaled, np.asarray(s.reported(whole, limit), wide[0].dtype)

    return clip_by_global_norm


ADAM, SGD, CLIPPING = Adam(), Sgd(), Clipping()
adam_step, sgd_step, clip_by_global_norm = adam_by(ADAM), sgd_by(SGD), clip_by(CLIPPING)
