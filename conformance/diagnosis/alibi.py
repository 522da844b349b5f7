"""Known mistakes in ALiBi's bias, which a kernel computes from slopes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.diagnosis.attention import OTHER_HEADS, Change, stepped
from conformance.diagnosis.matching import Failing
from conformance.diagnosis.steps import Steps
from specification.dtypes import HALF

Bias = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""bias(slopes, places): from slopes [B or 1, H, 1, 1], and how far each key stands behind its query [Q, K]."""


def biased(bias: Bias, from_the_first: bool = False) -> Change:
    """Attention with another bias. from_the_first: the first query stands at the first key."""

    def changed(failing: Failing) -> Steps | None:
        slopes, (Q, K) = failing.case.inputs.get("alibi_slopes"), failing.steps.visible.shape[2:]
        if slopes is None:
            return None
        places = np.arange(Q)[:, None] + (0 if from_the_first else K - Q) - np.arange(K)
        return failing.steps.changed(bias=bias(np.atleast_2d(slopes.astype(float))[..., None, None], places))

    return changed


def distances(slopes: np.ndarray, places: np.ndarray) -> np.ndarray:
    return -slopes * np.abs(places)


def scaled(failing: Failing) -> Steps | None:
    s = failing.steps
    return s.changed(bias=s.bias * s.scale) if "alibi_slopes" in failing.case.inputs else None


def of_heads(order: Callable[[int, int], np.ndarray]) -> Change:
    """Heads have each other's slopes; `order` gets H and G."""

    def changed(failing: Failing) -> Steps | None:
        H, G = (failing.case.inputs[name].shape[1] for name in ("query", "key"))
        slopes = biased(lambda slopes, places: distances(slopes[:, order(H, max(G, 1))], places))
        return slopes(failing) if H > 1 else None

    return changed


def rounded(dtype: str) -> Bias:
    return lambda slopes, places: distances(slopes.astype(dtype).astype(float), places)


CHANGES: dict[str, Change] = {
    "ALiBi's slopes are ignored": biased(lambda slopes, places: np.zeros((1, 1, 1, 1))),
    "ALiBi's bias is |i - j|, from the first query and key": biased(distances, from_the_first=True),
    "ALiBi's bias is added with the wrong sign": biased(lambda slopes, places: slopes * np.abs(places)),
    "ALiBi's bias raises keys behind the query's place": biased(lambda slopes, places: -slopes * places),
    "ALiBi's bias is multiplied by the scale": scaled,
    "ALiBi's slopes of the first batch element are used for all": biased(lambda s, places: distances(s[:1], places)),
    "ALiBi's slope of head 0 is used for all heads": of_heads(lambda H, G: np.zeros(H, int)),
    **{name.format("ALiBi slope"): of_heads(order) for name, order in OTHER_HEADS.items()},
    **{f"ALiBi's slopes are rounded to {dtype}": biased(rounded(dtype)) for dtype in HALF},
}
MISTAKES = [stepped(name, change) for name, change in CHANGES.items()]
