"""Mistakes of norms: another eps, another kind, a part that is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.ports.computation import Step
from conformance.ports.mistakes.mistake import Topic, change_argument, change_fields, replace_function
from specification.configuration import Configuration
from specification.dtypes import SMALLEST_EPS
from specification.parameters import Norm

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
"""Those that libraries have as defaults."""
NORM, X, CONFIGURATION = 0, 1, 2
"""Positions of the arguments of `normalize`."""
KINDS = {
    "layer_norm": ("NORM-7", "the norm is a layer norm"),
    "rms_norm": ("NORM-7", "the norm is an RMS norm"),
    "rms_norm_plus_one": ("NORM-8", "the norm is an RMS norm with the weight 1 + w"),
    "standard_deviation_norm": ("NORM-7", "the norm divides by n - 1, and adds eps outside the root"),
}
TOPIC = Topic("norm", "NORM-1", ("normalize",))


def rename(kind: str) -> Any:
    """Normalise by another norm; one that has no bias leaves it out."""

    def change(step: Step) -> Step:
        step = change_fields(CONFIGURATION, norm=kind)(step)
        return change_argument(NORM, lambda norm: Norm(norm.weight))(step) if kind.startswith("rms") else step

    return change


def drop_plus_one(step: Step) -> Step:
    norm = step.arguments[CONFIGURATION].norm.removesuffix("_plus_one")
    return change_fields(CONFIGURATION, norm=norm)(step)


def scale(norm: Norm, configuration: Configuration, normalized: np.ndarray) -> Any:
    """The affine step."""
    weight = norm.weight + (1 if configuration.norm.endswith("_plus_one") else 0)
    return normalized * weight + (0 if norm.bias is None else norm.bias)


def deviations(x: np.ndarray, configuration: Configuration) -> Any:
    return x if configuration.norm.startswith("rms") else x - x.mean(-1, keepdims=True)


def add_eps_outside(norm: Norm, x: np.ndarray, configuration: Configuration) -> Any:
    deviation = deviations(x, configuration)
    root = np.sqrt(np.mean(deviation**2, axis=-1, keepdims=True)) + configuration.norm_eps
    return scale(norm, configuration, deviation / root)


def divide_unbiased(norm: Norm, x: np.ndarray, configuration: Configuration) -> Any:
    deviation, n = deviations(x, configuration), x.shape[-1]
    root = np.sqrt(np.sum(deviation**2, axis=-1, keepdims=True) / (n - 1) + configuration.norm_eps)
    return scale(norm, configuration, deviation / root)


def drop_mean(norm: Norm, x: np.ndarray, configuration: Configuration) -> Any:
    """The mean is subtracted, and the mean square of x itself is divided by."""
    root = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + configuration.norm_eps)
    return scale(norm, configuration, deviations(x, configuration) / root)


def divide_by_sum(norm: Norm, x: np.ndarray, configuration: Configuration) -> Any:
    deviation = deviations(x, configuration)
    root = np.sqrt(np.sum(deviation**2, axis=-1, keepdims=True) + configuration.norm_eps)
    return scale(norm, configuration, deviation / root)


def initial_weight(configuration: Configuration) -> float:
    """Return the weight with which training begins, that changes nothing."""
    return 0.0 if configuration.norm.endswith("_plus_one") else 1.0


def drop_weight(step: Step) -> Step:
    norm, _, configuration = step.arguments
    return step.argument(NORM, norm._replace(weight=np.full_like(norm.weight, initial_weight(configuration))))


def drop_parameters(step: Step) -> Step:
    """Leave weight and bias as training begins with them; a norm without bias is one without weight."""
    if step.arguments[NORM].bias is None:
        return step
    return change_argument(NORM, lambda norm: norm._replace(bias=None))(drop_weight(step))


def normalize_twice(step: Step) -> Step:
    return step._replace(function=lambda norm, x, c: step.function(norm, step.function(norm, x, c), c))


MISTAKES = (
    *(TOPIC.entry(f"eps-{eps:g}", f"the norm's eps is {eps:g}", change_fields(2, norm_eps=eps)) for eps in EPSILONS),
    TOPIC.entry("no-eps", "the norm has no eps", change_fields(2, norm_eps=SMALLEST_EPS)),
    TOPIC.entry("eps-outside", "the norm's eps is added to the root", replace_function(add_eps_outside)),
    TOPIC.entry("weight-itself", "the norm's weight is w, in place of 1 + w", drop_plus_one, "NORM-8"),
    *(TOPIC.entry(kind.replace("_", "-"), says, rename(kind), rule) for kind, (rule, says) in KINDS.items()),
    TOPIC.entry(
        "weight-plus-one",
        "1 is added to the norm's weight",
        change_argument(NORM, lambda norm: norm._replace(weight=norm.weight + 1)),
        "NORM-8",
    ),
    TOPIC.entry("unbiased", "the norm's variance is divided by n - 1", replace_function(divide_unbiased)),
    TOPIC.entry("mean-square", "the norm divides by the root of the mean square", replace_function(drop_mean)),
    TOPIC.entry("sum", "the norm takes the sum of squares, in place of their mean", replace_function(divide_by_sum)),
    TOPIC.entry("no-weight", "the norm's weight is left out", drop_weight),
    TOPIC.entry("no-bias", "the norm's bias is left out", change_argument(NORM, lambda norm: norm._replace(bias=None))),
    TOPIC.entry("not-loaded", "the norm's weight and bias are left out", drop_parameters),
    TOPIC.entry("left-out", "the norm is left out", replace_function(lambda norm, x, configuration: x), "BLK-1"),
    TOPIC.entry("twice", "the norm is applied twice", normalize_twice, "BLK-1"),
)
