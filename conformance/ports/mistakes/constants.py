"""Numbers of a model that a port may have others of, where no list can hold the wrong ones: they are fitted.

A number is varied until the definition gives what the port gives. One number that explains hundreds within their bounds
does so by no chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.ports.computation import Step
from conformance.ports.mistakes.attention import CONFIGURATION as OF_ATTENTION
from conformance.ports.mistakes.attention import (
    LAYER,
    change_layer,
    change_rotary,
    complete,
    find_scale,
    lower_scores,
    multiply_scale,
)
from conformance.ports.mistakes.mistake import StepChange, StepMistake, change_fields
from conformance.ports.mistakes.networks import activate_otherwise, change_result, change_sum, sigmoid
from conformance.ports.mistakes.norms import CONFIGURATION as OF_NORM
from specification.configuration import AttentionLayer

DOUBLINGS = 32
"""Of a number and of its inverse, where a fit begins: from 1e-10 to 4e9 times of what is due."""
STEPS = 12
"""Of Gauss and Newton: each has twice as many right digits as the one before it."""
SMALL_STEP = 1e-6
"""By which the logarithm of a number is changed for a slope."""
DIGITS = range(1, 9)
FURTHEST = 64
"""The largest window that is tried."""


@dataclass(frozen=True)
class Constant:
    """One number.

    Attributes:
        id, rule, says, kinds: of the mistake; `{value}` in `says` stands for the number.
        change: makes steps of a port that has this number.
        due: what it is in a step, where a fit begins; None where the step has none.
        values: all that it may be, where these are few.
    """

    id: str
    rule: str
    says: str
    kinds: tuple[str, ...]
    change: Callable[[float], StepChange]
    due: Callable[[Step], float | None] = lambda step: 1.0
    values: Sequence[float] = ()

    def make(self, value: float) -> StepMistake:
        says = self.says.format(value=f"{value:.8g}")
        return StepMistake(self.id, self.rule, says, self.change(value), self.kinds)


def set_window(value: float) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        if layer.window is None:
            return layer
        return replace(layer, window=(int(value), int(value) if layer.window[1] else 0))

    return change_layer(change)


def set_factor(value: float) -> StepChange:
    """Set the factor of rotary scaling."""

    def change(layer: AttentionLayer) -> AttentionLayer:
        if layer.rotary is None or not hasattr(layer.rotary.scaling, "factor"):
            return layer
        scaling: Any = layer.rotary.scaling
        return replace(layer, rotary=replace(layer.rotary, scaling=replace(scaling, factor=value)))

    return change_layer(change)


def find_rotary(step: Step) -> Any:
    return complete(step).arguments[LAYER].rotary


def set_cubic(value: float) -> StepChange:
    return activate_otherwise(lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + value * x**3))))


def scale_table(value: float) -> StepChange:
    return change_result(lambda x: value * x)


CONSTANTS = (
    Constant(
        "norm.eps", "NORM-1", "the norm's eps is {value}", ("normalize",),
        lambda value: change_fields(OF_NORM, norm_eps=value), lambda step: step.arguments[OF_NORM].norm_eps,
    ),
    Constant(
        "attention.scale", "ATT-1", "scores are multiplied by {value}", ("attend",),
        lambda value: change_fields(OF_ATTENTION, scale=value), find_scale,
    ),
    Constant(
        "attention.scale-factor", "ATT-1", "scores are {value} times what they should be", ("attend",), multiply_scale
    ),
    Constant(
        "attention.softcap", "ATT-2", "scores are capped at {value}", ("attend",),
        lambda value: change_fields(OF_ATTENTION, softcap=value),
        lambda step: step.arguments[OF_ATTENTION].softcap or 50.0,
    ),
    Constant(
        "attention.rotary-base", "POS-3", "the rotary base is {value}", ("attend",),
        lambda value: change_rotary(base=value), lambda step: getattr(find_rotary(step), "base", None),
    ),
    Constant(
        "attention.rotary-scaling-factor", "POS-4", "the factor of rotary scaling is {value}", ("attend",), set_factor,
        lambda step: getattr(getattr(find_rotary(step), "scaling", None), "factor", None),
    ),
    Constant(
        "attention.mask-number", "ATT-4", "forbidden scores are lowered by {value} alone", ("attend",), lower_scores,
        lambda step: 2.0,
    ),
    Constant(
        "attention.window", "MASK-4", "the window reaches {value} keys back", ("attend",), set_window,
        lambda step: (complete(step).arguments[LAYER].window or (None,))[0], range(FURTHEST + 1),
    ),
    Constant(
        "network.gelu-cubic", "FFN-1", "GELU by tanh has {value} in the place of 0.044715", ("transform",),
        set_cubic, lambda step: 0.044715,
    ),
    Constant(
        "network.sigmoid-factor", "FFN-1", "the activation is x sigmoid({value} x)", ("transform",),
        lambda value: activate_otherwise(lambda x: x * sigmoid(value * x)),
    ),
    Constant(
        "residual.output-factor", "BLK-1", "what a sublayer gives is multiplied by {value} before the sum", ("add",),
        lambda value: change_sum(lambda x, y: x + value * y),
    ),
    Constant(
        "residual.factor", "BLK-1", "the residual connection is multiplied by {value}", ("add",),
        lambda value: change_sum(lambda x, y: value * x + y),
    ),
    Constant("embedding.factor", "EMB-1", "embeddings are {value} times too large", ("embedding",), scale_table),
    Constant("output.factor", "TRF-1", "the output layer's result is multiplied by {value}", ("linear",), scale_table),
)  # fmt: skip


def list_starts(constant: Constant, due: float) -> list[float]:
    """Return the numbers with which a fit begins."""
    if constant.values:
        return [float(value) for value in constant.values]
    return [due * 2.0**power for power in range(-DOUBLINGS, DOUBLINGS + 1)]


def fit(residual: Callable[[float], np.ndarray | None], starts: Sequence[float], is_exact: bool) -> float | None:
    """Return the number for which the residuals are least; None where there are none.

    Args:
        residual: from a number to the errors that it leaves, in bounds.
        starts: numbers, of which the best is refined. is_exact: whether no other number is possible.
    """
    sizes = {start: measure(residual(start)) for start in starts}
    value = min(starts, key=lambda start: sizes[start])
    if not np.isfinite(sizes[value]) or is_exact:
        return value if np.isfinite(sizes[value]) else None
    best = sizes[value]
    for _ in range(STEPS):
        here, near = residual(value), residual(value * math.exp(SMALL_STEP))
        if here is None or near is None:
            return None
        slope = (near - here) / SMALL_STEP
        square = float(slope @ slope)
        if not square > 0 or not np.isfinite(square):
            return value
        step = float(np.clip(-(slope @ here) / square, -math.log(2), math.log(2)))
        size = measure(residual(value * math.exp(step)))
        if not size < best:
            return value
        value, best = value * math.exp(step), size
    return value


def measure(residual: np.ndarray | None) -> float:
    if residual is None:
        return np.inf
    size = float(np.sqrt(np.mean(residual**2))) if residual.size else np.inf
    return size if np.isfinite(size) else np.inf


def measure_largest(residual: np.ndarray | None) -> float:
    """The largest error; infinity where there is none, or no number."""
    return np.inf if residual is None or not np.isfinite(residual).all() else float(np.max(np.abs(residual), initial=0))
