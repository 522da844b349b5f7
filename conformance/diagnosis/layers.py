"""Known mistakes of norms, positions, embedding and feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.diagnosis.matching import Mistake, computed, instead
from conformance.oracle import oracle

Statistic = Callable[[np.ndarray, tuple[int, ...], float], tuple[Any, Any]]


# --- norms ------------------------------------------------------------------------------------------------------------


def normalised(name: str, statistic: Statistic) -> Mistake:
    """A norm with other statistics: `statistic(x, axes, eps)` gives what is subtracted and what is divided by."""

    def output(case: Case) -> Any:
        x, weight = case.inputs["x"].astype(float), case.inputs["weight"].astype(float)
        axes = tuple(range(-weight.ndim, 0))
        shift, divisor = statistic(x, axes, case.options.get("eps", 1e-5))
        result = (x - shift) / divisor * weight
        return result + case.inputs["bias"].astype(float) if "bias" in case.inputs else result

    return computed(name, output)


def mean(x: np.ndarray, axes: tuple[int, ...]) -> Any:
    return x.mean(axis=axes, keepdims=True)


def variance(x: np.ndarray, axes: tuple[int, ...], less: int = 0) -> Any:
    n = int(np.prod([x.shape[axis] for axis in axes]))
    return ((x - mean(x, axes)) ** 2).sum(axis=axes, keepdims=True) / max(n - less, 1)


def square(x: np.ndarray, axes: tuple[int, ...]) -> Any:
    return (x**2).mean(axis=axes, keepdims=True)


def with_eps(eps: float) -> Callable[[Case], Case | None]:
    return lambda case: None if case.options.get("eps", 1e-5) == eps else replace(case, options={"eps": eps})


def without(name: str) -> Callable[[Case], Case | None]:
    """The parameter as it begins: a weight of 1, no bias."""

    def changed(case: Case) -> Case | None:
        if name not in case.inputs:
            return None
        if name == "bias":
            return replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})
        return replace(case, inputs=case.inputs | {name: np.ones_like(case.inputs[name])})

    return changed


NORM_MISTAKES = [
    normalised("the variance is unbiased, over n - 1", lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a, 1) + e))),
    normalised("eps is added outside the root", lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a)) + e)),
    normalised(
        "the deviation is unbiased and eps is added outside the root (standard_deviation_norm)",
        lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a, 1)) + e),
    ),
    normalised("the mean is not subtracted (rms_norm)", lambda x, a, e: (0.0, np.sqrt(square(x, a) + e))),
    normalised("the mean is subtracted", lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a) + e))),
    normalised("eps is left out", lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a)))),
    normalised("eps is squared", lambda x, a, e: (mean(x, a), np.sqrt(variance(x, a) + e * e))),
    normalised("the root is not taken", lambda x, a, e: (mean(x, a), variance(x, a) + e)),
    normalised(
        "statistics run over the last axis only",
        lambda x, a, e: (mean(x, (-1,)), np.sqrt(variance(x, (-1,)) + e)),
    ),
    normalised(
        "statistics run over all axes but the first",
        lambda x, a, e: (mean(x, tuple(range(1, x.ndim))), np.sqrt(variance(x, tuple(range(1, x.ndim))) + e)),
    ),
    *(instead(f"eps is {eps:g}", with_eps(eps)) for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)),
    instead("weight is ignored", without("weight")),
    instead("bias is ignored", without("bias")),
    instead(
        "weight is taken as its distance from 1",
        lambda case: replace(case, inputs=case.inputs | {"weight": case.inputs["weight"] + 1}),
    ),
]


# --- positions, embedding, feed-forward -------------------------------------------------------------------------------


def options(**changed: Any) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        if all(case.options.get(name) == value for name, value in changed.items()):
            return None
        return replace(case, options=case.options | changed)

    return change


def columns(name: str, order: Callable[[int], np.ndarray]) -> Mistake:
    """The right columns in another order; `order` gets the width."""
    return computed(name, lambda case: oracle(case)["output"].high[:, order(case.options["width"])])


def halves(width: int) -> np.ndarray:
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


def swapped(width: int) -> np.ndarray:
    return np.minimum(np.arange(width) ^ 1, width - 1)


LAYER_MISTAKES = {
    "sinusoidal_positions": [
        columns("all sines come first, then all cosines", halves),
        columns("sine and cosine are swapped", swapped),
        instead("the offset is ignored", options(offset=0)),
        instead("the other exponent is used (doubled)", options(exponent="doubled")),
        instead("the other exponent is used (shared)", options(exponent="shared")),
        instead("positions count from 1", lambda case: options(offset=case.options.get("offset", 0) + 1)(case)),
    ],
    "embedding": [
        instead("rows are multiplied by sqrt(E) though not asked", options(scaled=True)),
        instead("rows are not multiplied by sqrt(E)", options(scaled=False)),
    ],
    "learned_positions": [instead("the offset is ignored", options(offset=0))],
    "feed_forward": [
        *(instead(f"the activation is {name}", options(activation=name)) for name in ("relu", "gelu", "gelu_tanh")),
        instead("the inner bias is ignored", lambda case: without_input(case, "inner.bias")),
        instead("the outer bias is ignored", lambda case: without_input(case, "outer.bias")),
    ],
}


def without_input(case: Case, name: str) -> Case | None:
    if name not in case.inputs:
        return None
    return replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})
