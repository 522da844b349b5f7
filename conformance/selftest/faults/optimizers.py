"""Optimizers and gradient clipping gone wrong (OPT-1 to OPT-3), and steps that change their arguments (ATT-13)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults import right_optimizers as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_numpy import Function, widen
from conformance.selftest.faults.right_optimizers import ADAM, CLIPPING, SGD, adam_by, clip_by, sgd_by

# --- Adam -------------------------------------------------------------------------------------------------------------


def adam(name: str, rule: str = "OPT-1", **steps: Function) -> Fault:
    return Fault(rule, name, "adam_step", adam_by(ADAM._replace(**steps)), right.adam_step)


def rounded_correction(beta: float, step: int) -> Any:
    """1 - beta^t, all of it in float32."""
    return np.float32(1) - np.float32(beta) ** np.float32(step)


def added_in_place(old: Any, new: Any, beta: float) -> Any:
    """Into the array that was given."""
    old *= beta
    old += (1 - beta) * new
    return old


def inside(mean: Any, square: Any, eps: float) -> Any:
    return mean / np.sqrt(square + eps)


def falling_never(old: Any, new: Any, beta: float) -> Any:
    return np.maximum(old, right.averaged(old, new, beta))


def nothing_from_nothing(gradient: Any) -> Any:
    """As where a parameter without a gradient is left alone."""
    return np.where(gradient == 0, np.nan, gradient)


STEPS = (
    adam("no bias correction", correction=lambda beta, step: 1.0),
    adam("bias correction one step late", correction=lambda beta, step: right.correction(beta, max(step - 1, 1))),
    adam("bias correction one step ahead", correction=lambda beta, step: right.correction(beta, step + 1)),
    adam("1 - beta^t in float32", correction=rounded_correction),
    adam("step not counted", number=lambda step: step),
    adam("eps inside the root", update=inside),
    adam("eps before the correction", eps=lambda eps, correction: eps / np.sqrt(correction)),
    adam("eps forgotten", update=lambda mean, square, eps: mean / np.sqrt(square)),
    adam("the larger of root and eps", update=lambda mean, square, eps: mean / np.maximum(np.sqrt(square), eps)),
    adam("decay coupled for decoupled", coupled=lambda decoupled: True),
    adam("decay decoupled for coupled", coupled=lambda decoupled: False),
    adam("decay without the learning rate", kept=lambda rate, decay: 1 - decay),
    adam("mean takes the whole gradient", averaged=lambda old, new, beta: beta * old + new),
    adam("square from the mean", squared=lambda gradient, mean: mean * mean),
    adam("square never falls", largest=falling_never),
    adam("update from the old averages", late=lambda old, new: old),
    adam("nothing for a gradient of 0", widened=lambda gradient: nothing_from_nothing(widen(gradient))),
    adam("NaN taken for 0", widened=lambda gradient: np.nan_to_num(widen(gradient), posinf=np.inf, neginf=-np.inf)),
    adam(
        "averages in the dtype of the parameters", stored=lambda array, dtype: array.astype(dtype).astype(array.dtype)
    ),
    adam("averages changed in place", "ATT-13", averaged=added_in_place, largest=added_in_place),
)

# --- gradient descent -------------------------------------------------------------------------------------------------


def sgd(name: str, rule: str = "OPT-2", **steps: Function) -> Fault:
    return Fault(rule, name, "sgd_step", sgd_by(SGD._replace(**steps)), right.sgd_step)


def moved_in_place(parameter: Any, update: Any, rate: float) -> Any:
    parameter -= (rate * update).astype(parameter.dtype)
    return parameter


DESCENT = (
    sgd("dampening by 1 - momentum", velocity=lambda old, g, momentum: momentum * old + (1 - momentum) * g),
    sgd("velocity forgotten", velocity=lambda old, g, momentum: g),
    sgd("nesterov from the old velocity", nesterov=lambda g, old, new, momentum: g + momentum * old),
    sgd("nesterov without the gradient", nesterov=lambda g, old, new, momentum: momentum * new),
    sgd("nesterov left out", nesterov=lambda g, old, new, momentum: new),
    sgd("decay decoupled", decayed=lambda g, parameter, decay: g),
    sgd("decay subtracted", decayed=lambda g, parameter, decay: g - decay * parameter),
    sgd("parameters changed in place", "ATT-13", moved=moved_in_place),
)

# --- clipping ---------------------------------------------------------------------------------------------------------


def clipping(name: str, rule: str = "OPT-3", **steps: Function) -> Fault:
    return Fault(rule, name, "clip_by_global_norm", clip_by(CLIPPING._replace(**steps)), right.clip_by_global_norm)


def plain_norm(arrays: Any) -> Any:
    """Squares of the elements as they are."""
    return np.sqrt(sum(np.sum(np.square(array)) for array in arrays))


def scaled_in_place(array: Any, factor: Any) -> Any:
    array *= np.asarray(factor, array.dtype)
    return array


CLIPPED = (
    clipping("1e-6 added to the norm", factor=lambda norm, limit: min(1.0, limit / (norm + 1e-6))),
    clipping("each array by its own norm", together=lambda array, arrays: [array]),
    clipping("scaled below the limit too", factor=lambda norm, limit: 1.0 if np.isinf(limit) else limit / norm),
    clipping("divided by the norm", factor=lambda norm, limit: 1 / norm if norm > limit else 1.0),
    clipping("largest size for the norm", norm=lambda arrays: max(np.max(np.abs(array)) for array in arrays)),
    clipping("squares overflow", norm=plain_norm),
    clipping("norm after clipping", reported=lambda norm, limit: np.minimum(norm, limit)),
    clipping("NaN everywhere", untouched=lambda norm: False),
    clipping("gradients changed in place", "ATT-13", scaled=scaled_in_place),
)

FAULTS = (*STEPS, *DESCENT, *CLIPPED)
