"""The steps of attention in float64, for mistakes to be made in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.pairs import dense_meaning


def repeats(case: Case) -> int:
    """Query heads to a key head."""
    return case.inputs["query"].shape[1] // max(case.inputs["key"].shape[1], 1)


def resolved_scale(case: Case) -> float:
    scale = case.options.get("scale")
    return case.inputs["query"].shape[-1] ** -0.5 if scale is None else scale


def capped(softcap: float | None) -> Callable[[np.ndarray], np.ndarray]:
    return (lambda scores: scores) if softcap is None else (lambda scores: softcap * np.tanh(scores / softcap))


def exact_products(case: Case) -> np.ndarray:
    """scale * query @ key^T."""
    query, key = (case.inputs[name].astype(float) for name in ("query", "key"))
    return query @ np.repeat(key, repeats(case), axis=1).swapaxes(-1, -2) * resolved_scale(case)


def exact_bias(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(the bias without its -inf, the pairs that mask and bias allow)."""
    bias = case.inputs["bias"].astype(float) if "bias" in case.inputs else np.zeros(())
    return np.where(np.isfinite(bias), bias, 0.0), dense_meaning(case) & (bias != -np.inf)


def exact_value(case: Case) -> np.ndarray:
    """The values that each query head reads, [B, H, K, V]."""
    return np.repeat(case.inputs["value"].astype(float), repeats(case), axis=1)


def exact_sinks(case: Case) -> Any:
    return case.inputs["sinks"].astype(float)[:, None, None] if "sinks" in case.inputs else None


def masked_scores(case: Case) -> np.ndarray:
    """With -inf for forbidden pairs."""
    bias, allowed = exact_bias(case)
    return np.where(allowed, capped(case.options.get("softcap"))(exact_products(case)) + bias, -np.inf)


def exact_scores(case: Case) -> tuple[np.ndarray, np.ndarray, Any]:
    """(masked scores, values, sinks or None)."""
    return masked_scores(case), exact_value(case), exact_sinks(case)
