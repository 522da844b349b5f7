"""Right attention in NumPy, in steps that can be replaced one by one: what the planted faults stand on.

    scores  = softcap(scale * query . key) + bias        for the allowed pairs, 0 for the others
    weights = exp(scores - maximum) / total
    output  = weights . value

Shapes: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V]. Every step sees arrays in the compute dtype, with one
key and value head for each query head, and which pairs are allowed as a boolean array [B, H, Q, K].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Function = Callable[..., Any]


# --- the steps --------------------------------------------------------------------------------------------------------


def widen(array: Any) -> Any:
    """float64 stays, everything else becomes float32."""
    return None if array is None else array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def heads(array: Any, count: int) -> Any:
    """Query head h reads key head h // (H / G)."""
    return np.repeat(array, count // max(array.shape[1], 1), axis=1)


def allowed_pairs(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    """[B, H, Q, K]: neither the mask nor a bias of -inf forbids the pair."""
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    return allowed if bias is None else allowed & (bias != -np.inf)


def products(query: Any, key: Any, allowed: Any) -> Any:
    """query . key where allowed, 0 elsewhere."""
    return np.where(allowed, query @ key.swapaxes(-1, -2), 0)


def resolved_scale(scale: float | None, query: Any, value: Any) -> float:
    """1 / sqrt(D) unless given; `value` is None where there is none."""
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def scores(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """softcap(scale * products) + bias."""
    scores = products * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    return scores if bias is None else scores + np.where(allowed, bias, 0)


def maximum(scores: Any, allowed: Any, sinks: Any) -> Any:
    """The row's largest allowed score or its sink, [B, H, Q, 1]; 0 for a row without any."""
    largest = np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True)
    largest = largest if sinks is None else np.maximum(largest, sinks[:, None, None])
    return np.where(largest == -np.inf, 0, largest)


def exponentials(shifted: Any, allowed: Any) -> Any:
    """exp(scores - maximum), 0 where forbidden."""
    return np.where(allowed, np.exp(np.where(allowed, shifted, 0)), 0)


def total(exponentials: Any, maximum: Any, sinks: Any) -> Any:
    """The denominator, [B, H, Q, 1]."""
    total = exponentials.sum(axis=-1, keepdims=True)
    return total if sinks is None else total + np.exp(sinks[:, None, None] - maximum)


def normalized(exponentials: Any, total: Any, allowed: Any) -> Any:
    """The weights; a row that allows nothing has a total of 0."""
    return np.where(allowed, exponentials / np.where(total == 0, 1, total), 0)


def logsumexp(maximum: Any, total: Any) -> Any:
    """[B, H, Q]; -inf where the total is 0."""
    return (maximum + np.log(total))[..., 0]


def fill(weights: Any, allowed: Any, empty_rows: str) -> tuple[Any, Any]:
    """Weights of empty rows, and the pairs over which values are summed."""
    if empty_rows == "zero":
        return weights, allowed
    empty = ~allowed.any(axis=-1, keepdims=True)
    filling = np.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return np.where(empty, filling, weights).astype(weights.dtype), allowed | empty


def dropout(weights: Any, keep: Any, rate: float) -> Any:
    """weights * keep / (1 - rate)."""
    return weights if keep is None else weights * keep * weights.dtype.type(1 / (1 - rate))


def weighted_sum(weights: Any, value: Any, allowed: Any) -> Any:
    """weights . value over the allowed keys; one NaN or infinity among an entry's allowed values makes it NaN."""
    finite = np.isfinite(value)
    output = weights @ np.where(finite, value, 0)
    reached = allowed.astype(value.dtype) @ (~finite).astype(value.dtype) > 0
    return np.where(reached, np.nan, output)


def rounded(output: Any, dtype: Any) -> Any:
    return output.astype(dtype)


class Steps(NamedTuple):
    """Every step under the name by which a fault replaces it."""

    widen: Function = widen
    heads: Function = heads
    allowed: Function = allowed_pairs
    products: Function = products
    scale: Function = resolved_scale
    scores: Function = scores
    maximum: Function = maximum
    exponentials: Function = exponentials
    total: Function = total
    normalized: Function = normalized
    logsumexp: Function = logsumexp
    fill: Function = fill
    dropout: Function = dropout
    weighted_sum: Function = weighted_sum
    rounded: Function = rounded


# --- the operations ---------------------------------------------------------------------------------------------------


class Softmax(NamedTuple):
    """What the steps up to the softmax give."""

    allowed: Any
    scale: float
    products: Any
    weights: Any
    maximum: Any
    total: Any


def softmax_of(
    s: Steps, query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: Any, softcap: Any, sinks: Any
) -> Softmax:
    """Query, key, bias and sinks as they are given; `value` only for its width."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    query, key, bias, sinks = s.widen(query), s.heads(s.widen(key), H), s.widen(bias), s.widen(sinks)
    allowed = s.allowed(mask, bias, (B, H, Q, K))
    resolved = s.scale(scale, query, value)
    products = s.products(query, key, allowed)
    scores = s.scores(products, resolved, softcap, bias, allowed)
    maximum = s.maximum(scores, allowed, sinks)
    exponentials = s.exponentials(scores - maximum, allowed)
    total = s.total(exponentials, maximum, sinks)
    return Softmax(allowed, resolved, products, s.normalized(exponentials, total, allowed), maximum, total)


def attention_by(s: Steps) -> Function:
    """`attention` in these steps."""

    @np.errstate(all="ignore")
    def attention(
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        dropout_keep: Any = None,
        dropout_rate: float = 0.0,
        empty_rows: str = "zero",
    ) -> Any:
        softmax = softmax_of(s, query, key, value, mask, bias, scale, softcap, sinks)
        weights, reach = s.fill(softmax.weights, softmax.allowed, empty_rows)
        weights = s.dropout(weights, dropout_keep, dropout_rate)
        output = s.weighted_sum(weights, s.heads(s.widen(value), query.shape[1]), reach)
        return s.rounded(output, query.dtype)

    return attention


def attention_weights_by(s: Steps) -> Function:
    """`attention_weights` in these steps."""

    @np.errstate(all="ignore")
    def attention_weights(
        query: Any,
        key: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        empty_rows: str = "zero",
    ) -> Any:
        softmax = softmax_of(s, query, key, None, mask, bias, scale, softcap, sinks)
        return s.rounded(s.fill(softmax.weights, softmax.allowed, empty_rows)[0], query.dtype)

    return attention_weights


def attention_logsumexp_by(s: Steps) -> Function:
    """`attention_logsumexp` in these steps."""

    @np.errstate(all="ignore")
    def attention_logsumexp(
        query: Any,
        key: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> Any:
        softmax = softmax_of(s, query, key, None, mask, bias, scale, softcap, sinks)
        return s.logsumexp(softmax.maximum, softmax.total)

    return attention_logsumexp


RIGHT = Steps()
attention = attention_by(RIGHT)
attention_weights = attention_weights_by(RIGHT)
attention_logsumexp = attention_logsumexp_by(RIGHT)
