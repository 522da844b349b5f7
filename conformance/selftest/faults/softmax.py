"""The softmax and its sinks gone wrong (ATT-5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults.dtypes import truncated
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import of_weights, planted
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    attention,
    attention_by,
    exponentials,
    maximum,
    normalized,
    total,
)


def over_queries(exponentials: Any, total: Any, allowed: Any) -> Any:
    sums = exponentials.sum(axis=-2, keepdims=True)
    return np.where(allowed, exponentials / np.where(sums == 0, 1, sums), 0)


def scaled_exponent(factor: float) -> Function:
    return lambda shifted, allowed: exponentials(shifted * shifted.dtype.type(factor), allowed)


def half_of_the_digits(shifted: Any, allowed: Any) -> Any:
    """exp to 12 bits in float32."""
    return truncated(exponentials(shifted, allowed), 11)


def pruned(exponentials: Any, total: Any, allowed: Any) -> Any:
    """Weights below 1e-4 dropped."""
    weights = normalized(exponentials, total, allowed)
    return np.where(weights < 1e-4, 0, weights)


def one_more(exponentials: Any, maximum: Any, sinks: Any) -> Any:
    """A sink of 0 in every head."""
    return total(exponentials, maximum, sinks) + np.exp(-maximum)


def guarded(exponentials: Any, maximum: Any, sinks: Any) -> Any:
    """1e-8 against a division by 0."""
    return total(exponentials, maximum, sinks) + exponentials.dtype.type(1e-8)


def sinks_as(change: Function) -> Any:
    """`change(sinks)` in place of the sinks."""

    def changed(step: Function) -> Function:
        return lambda array, second, sinks: step(array, second, None if sinks is None else change(sinks))

    return {"maximum": changed(maximum), "total": changed(total)}


def with_first_value(weights: Any, value: Any, allowed: Any) -> Any:
    """What the weights lack to 1 goes to the first value."""
    return RIGHT.weighted_sum(weights, value, allowed) + (1 - weights.sum(-1, keepdims=True)) * value[:, :, :1]


def sink_with_a_value(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
    steps = RIGHT if sinks is None else RIGHT._replace(weighted_sum=with_first_value)
    return attention_by(steps)(query, key, value, mask=mask, sinks=sinks)


def sinks_under_the_softcap(
    query: Any, key: Any, value: Any, *, mask: Any = None, softcap: Any = None, sinks: Any = None
) -> Any:
    if softcap is not None and sinks is not None:
        sinks = (softcap * np.tanh(np.float64(sinks) / softcap)).astype(sinks.dtype)
    return attention(query, key, value, mask=mask, softcap=softcap, sinks=sinks)


def sinks_under_the_scale(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, sinks: Any = None
) -> Any:
    if scale is not None and sinks is not None:
        sinks = (np.float64(sinks) * scale).astype(sinks.dtype)
    return attention(query, key, value, mask=mask, scale=scale, sinks=sinks)


def sink_of_full_rows(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
    """A row in which anything is forbidden loses its sink."""
    output = attention(query, key, value, mask=mask, sinks=sinks)
    if mask is None or sinks is None:
        return output
    shape = (*query.shape[:3], key.shape[2])
    full = np.broadcast_to(mask, shape).all(-1, keepdims=True)
    return np.where(full, output, attention(query, key, value, mask=mask))


FAULTS = (
    planted("ATT-5", "softmax over the queries", normalized=over_queries),
    planted("ATT-5", "exp off by 2e-5", exponentials=scaled_exponent(1.00002)),
    planted("ATT-5", "exp2 without log2(e)", exponentials=scaled_exponent(np.log(2))),
    planted("ATT-5", "exp to 12 bits", exponentials=half_of_the_digits),
    planted("ATT-5", "weights below 1e-4 dropped", normalized=pruned),
    planted("ATT-5", "one more in the denominator", total=one_more),
    planted("ATT-5", "1e-8 in the denominator", total=guarded),
    planted("ATT-5", "sinks left out of the denominator", total=lambda e, m, sinks: total(e, m, None)),
    planted("ATT-5", "sink of head 0 for all", **sinks_as(lambda sinks: np.broadcast_to(sinks[:1], sinks.shape))),
    planted("ATT-5", "sinks in reverse", **sinks_as(lambda sinks: sinks[::-1])),
    Fault("ATT-5", "sink with a value", "attention", sink_with_a_value, attention),
    Fault("ATT-5", "sinks under the softcap", "attention", sinks_under_the_softcap, attention),
    Fault("ATT-5", "sinks under the scale", "attention", sinks_under_the_scale, attention),
    Fault("ATT-5", "sinks of rows without a mask only", "attention", sink_of_full_rows, attention),
    of_weights("ATT-5", "weights of sinks too, so that rows add up to 1", total=lambda e, m, sinks: total(e, m, None)),
)  # fmt: skip
