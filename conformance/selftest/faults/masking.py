"""Forbidden scores that take part, and scores too large for exp (ATT-4, ATT-10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import planted
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    attention,
    attention_by,
    exponentials,
    maximum,
    scores,
)

# --- masking ----------------------------------------------------------------------------------------------------------


def everywhere(step: Function) -> Function:
    """The step as if every pair were allowed."""
    return lambda array, allowed, *more: step(array, np.ones_like(allowed), *more)


def filled_with(number: float, add: bool = False) -> Any:
    """Forbidden scores are this number, or have it added, and otherwise take part."""

    def filled(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
        found = scores(products, scale, softcap, bias, allowed)
        return np.where(allowed, found, found + number if add else number).astype(found.dtype)

    def rows_with_keys(exponentials: Any, total: Any, allowed: Any) -> Any:
        return np.where(allowed.any(-1, keepdims=True), exponentials / total, 0)

    return {"scores": filled, "maximum": everywhere(maximum), "exponentials": everywhere(exponentials),
            "normalized": rows_with_keys, "weighted_sum": lambda weights, value, allowed: weights @ value}  # fmt: skip


def over_all_keys(total_or_maximum: Function) -> Function:
    return lambda scores, allowed, sinks: total_or_maximum(scores, np.ones_like(allowed), sinks)


def unmasked_products(query: Any, key: Any, allowed: Any) -> Any:
    return query @ key.swapaxes(-1, -2)


def scores_everywhere(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    return scores(products, scale, softcap, bias, np.ones_like(allowed))


MASKING = (
    planted("ATT-4", "forbidden scores -1e4", **filled_with(-1e4)),
    planted("ATT-4", "forbidden scores -65504", **filled_with(-65504.0)),
    planted("ATT-4", "forbidden scores -1e9", **filled_with(-1e9)),
    replace(planted("ATT-4", "forbidden scores -1e9, no bias", **filled_with(-1e9)), given={"supports": ["no-bias"]}),
    planted("ATT-4", "-1e9 added to forbidden scores twice", **filled_with(-2e9, add=True)),
    planted("ATT-4", "forbidden scores -1e20", **filled_with(-1e20)),
    planted("ATT-4", "forbidden scores the lowest float32", **filled_with(float(np.finfo(np.float32).min))),
    planted("ATT-4", "weights masked after the softmax", scores=scores_everywhere, maximum=over_all_keys(maximum),
            products=unmasked_products, exponentials=everywhere(exponentials)),
    planted("ATT-4", "maximum over forbidden keys too", scores=scores_everywhere, maximum=over_all_keys(maximum),
            products=unmasked_products),
)  # fmt: skip

# --- extreme logits ---------------------------------------------------------------------------------------------------


def no_maximum(scores: Any, allowed: Any, sinks: Any) -> Any:
    return np.zeros((*scores.shape[:-1], 1), scores.dtype)


def smallest(scores: Any, allowed: Any, sinks: Any) -> Any:
    """The smallest allowed score."""
    least = np.min(scores, axis=-1, where=allowed, initial=np.inf, keepdims=True)
    least = least if sinks is None else np.maximum(least, sinks[:, None, None])
    return np.where(np.isinf(least), 0, least)


def maximum_before_the_scale(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None
) -> Any:
    """The row's largest product times the scale: of a negative scale the smallest score."""
    steps = RIGHT._replace(maximum=smallest) if scale is not None and scale < 0 else RIGHT
    return attention_by(steps)(query, key, value, mask=mask, bias=bias, scale=scale)


def clamped(scores: Any, allowed: Any, sinks: Any) -> Any:
    """Shifted by 80 at most."""
    return np.clip(maximum(scores, allowed, sinks), -80, 80)


EXTREME = (
    planted("ATT-10", "no maximum taken off", maximum=no_maximum),
    planted("ATT-10", "maximum no larger than 80", maximum=clamped),
    Fault("ATT-10", "maximum before a negative scale", "attention", maximum_before_the_scale, attention),
)  # fmt: skip

FAULTS = (*MASKING, *EXTREME)
