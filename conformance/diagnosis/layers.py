"""Known mistakes of positions, embedding and feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.diagnosis.matching import Mistake, computed, instead
from conformance.oracle.reference import oracle


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
