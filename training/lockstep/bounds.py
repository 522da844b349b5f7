"""How far clipping and a step of Adam may be off, elementwise.

Both start from gradients that have an error themselves: none where an implementation has said which gradients it has,
and the bound of the definition's where it has not. Trees are dictionaries of arrays by path.

Adam's bound is that of the operation (`conformance/bounds/optimizers.py`), where 1 - beta^t may be taken as it stands,
in the compute dtype.

Clipping multiplies by s = min(1, limit / norm). The norm changes by at most the norm of the gradients' errors. Its sum
of N squares, none of them negative, is off by gamma(N), and its root by half of that; scaling by the largest element,
and putting parts together, takes CLIP roundings more. s falls as the norm grows, so its error is that at either end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import Approx, Precision, multiply
from conformance.bounds.optimizers import adam_from

CLIP = 8

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
    """Clip gradients by their global norm, and return them with the norm before."""
    value = np.sqrt(sum(np.sum(np.square(g.value)) for g in gradients.values()))
    given = np.sqrt(sum(np.sum(np.square(g.error)) for g in gradients.values()))
    count = sum(g.value.size for g in gradients.values())
    norm = Approx(value, given + p.gamma(count / 2 + CLIP) * (value + given) + p.inner_tiny)
    ends = np.maximum(norm.value + np.array([-1, 1]) * norm.error, np.finfo(float).tiny)
    scales = np.minimum(1, limit / ends)
    scale = min(1.0, limit / float(norm.value)) if norm.value > limit else 1.0
    factor = Approx(np.asarray(scale), np.max(np.abs(scales - scale)))
    return {path: multiply(g, factor, p, CLIP) for path, g in gradients.items()}, norm


def adam(parameters: Tree, gradients: Tree, mean: Tree, square: Tree, step: int, options: Adam, p: Precision) -> Moved:
    """Take one step of Adam, after so many steps; trees by path."""
    moved, numbers = Moved({}, {}, {}), options._asdict() | {"step": step}
    for path, parameter in parameters.items():
        inputs = {"parameters": parameter, "gradients": gradients[path], "mean": mean[path], "square": square[path]}
        with np.errstate(divide="ignore", invalid="ignore"):  # where a square is 0, its root takes another branch
            found = adam_from(inputs, numbers, p, naive=True)
        for name, arrays in moved._asdict().items():
            # An error without a bound, which 0 has multiplied, is none that is known: it stays without a bound.
            arrays[path] = Approx(found[name].value, np.where(np.isnan(found[name].error), np.inf, found[name].error))
    return moved
