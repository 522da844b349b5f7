"""Rows that may attend to nothing, gone wrong (ATT-6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import of_logsumexp, of_weights, planted
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    attention,
    maximum,
    normalized,
)


def divided_by_0(exponentials: Any, total: Any, allowed: Any) -> Any:
    return np.where(allowed.any(-1, keepdims=True), normalized(exponentials, total, allowed), np.nan)


def mean_of_all(weights: Any, allowed: Any, empty_rows: str) -> Any:
    """Zeros asked for, mean given."""
    return RIGHT.fill(weights, allowed, "mean" if empty_rows == "zero" else empty_rows)


def mean_with_sinks(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
    """The mean of all values in empty rows, though only where there are sinks."""
    if sinks is None or key.shape[2] == 0:
        return attention(query, key, value, mask=mask, sinks=sinks)
    empty = np.zeros((1, 1, 1, 1), bool) if mask is None else ~mask.any(-1)[..., None]
    mean = RIGHT.heads(np.float64(value), query.shape[1]).mean(axis=2, keepdims=True)
    return np.where(empty, mean, attention(query, key, value, mask=mask, sinks=sinks)).astype(query.dtype)


def mean_by_queries(weights: Any, allowed: Any, empty_rows: str) -> Any:
    """1 / Q in place of 1 / K."""
    filled, reach = RIGHT.fill(weights, allowed, empty_rows)
    empty = ~allowed.any(-1, keepdims=True)
    if empty_rows == "mean":
        filled = np.where(empty, filled * weights.shape[-1] / max(weights.shape[-2], 1), filled).astype(weights.dtype)
    return filled, reach


def lowest(maximum: Any, total: Any) -> Any:
    """The lowest float32 where -inf is due."""
    least = float(np.finfo(np.float32).min)
    return np.nan_to_num(RIGHT.logsumexp(maximum, total), nan=np.nan, posinf=np.inf, neginf=least)


def without_an_empty_rows_sink(scores: Any, allowed: Any, sinks: Any) -> Any:
    """A row that allows nothing is left at -inf before its sink is looked at."""
    return np.where(allowed.any(-1, keepdims=True), maximum(scores, allowed, sinks), -np.inf)


def mask_alone(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    return RIGHT.allowed(mask, None, shape)


def unguarded_maximum(scores: Any, allowed: Any, sinks: Any) -> Any:
    """-inf in a row whose allowed scores are all -inf."""
    if sinks is not None:
        return maximum(scores, allowed, sinks)
    return np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True)


def unguarded(shifted: Any, allowed: Any) -> Any:
    return np.where(allowed, np.exp(shifted), 0)


FAULTS = (
    planted("ATT-6", "empty rows as the mean", fill=mean_of_all),
    planted("ATT-6", "empty rows as 0 / 0", normalized=divided_by_0),
    planted("ATT-6", "mean of empty rows by the number of queries", fill=mean_by_queries),
    Fault("ATT-6", "empty rows with sinks as the mean", "attention", mean_with_sinks, attention),
    planted("ATT-6", "rows emptied by the bias as 0 / 0", allowed=mask_alone, exponentials=unguarded,
            maximum=unguarded_maximum),
    of_weights("ATT-6", "weights of empty rows as the mean", fill=mean_of_all),
    of_logsumexp("ATT-6", "log-sum-exp of empty rows the lowest number", logsumexp=lowest),
    of_logsumexp("ATT-6", "log-sum-exp of empty rows without their sink", maximum=without_an_empty_rows_sink),
)  # fmt: skip
