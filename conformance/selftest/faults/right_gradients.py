"""Right gradients of attention in NumPy, by hand, in steps that can be replaced one by one.

With P the weights, F what dropout multiplies by, T the softcap's slope and a bar for "gradient with respect to":

    V_bar = (F * P)^T O_bar        P_bar = F * (O_bar V^T)        S_bar = P * (P_bar - rowsum(P * P_bar))
    Q_bar = scale * (S_bar * T) K  K_bar = scale * (S_bar * T)^T Q

All sums run over the allowed pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    Softmax,
    attention_by,
    attention_logsumexp_by,
    products,
    softmax_of,
    weighted_sum,
)

# --- the steps --------------------------------------------------------------------------------------------------------


def weights_bar(output_bar: Any, value: Any, reach: Any) -> Any:
    """O_bar V^T at the pairs that the output sums over."""
    return products(output_bar, value, reach)


def value_bar(weights: Any, output_bar: Any, reach: Any) -> Any:
    """P^T O_bar, with what dropout multiplies by in P."""
    return weighted_sum(weights.swapaxes(-1, -2), output_bar, reach.swapaxes(-1, -2))


def row_mean(weights: Any, weights_bar: Any, allowed: Any) -> Any:
    """rowsum(P * P_bar), [B, H, Q, 1]."""
    return np.where(allowed, weights * weights_bar, 0).sum(axis=-1, keepdims=True)


def scores_bar(weights: Any, weights_bar: Any, mean: Any, logsumexp_bar: Any, allowed: Any) -> Any:
    """P * (P_bar - rowsum(P * P_bar) + L_bar)."""
    return np.where(allowed, weights * (weights_bar - mean + logsumexp_bar), 0)


def slope(products: Any, scale: float, softcap: float | None) -> Any:
    """Of the softcap: 1 - tanh(scores / c)^2, 1 without one."""
    return np.ones_like(products) if softcap is None else 1 - np.tanh(products * scale / softcap) ** 2


def query_bar(scaled_bar: Any, key: Any, scale: float, allowed: Any) -> Any:
    """scale * (S_bar * T) K."""
    return scale * weighted_sum(scaled_bar, key, allowed)


def key_bar(scaled_bar: Any, query: Any, scale: float, allowed: Any) -> Any:
    """scale * (S_bar * T)^T Q, for every query head."""
    return scale * weighted_sum(scaled_bar.swapaxes(-1, -2), query, allowed.swapaxes(-1, -2))


def bias_bar(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    """S_bar summed over the axes along which the bias was broadcast."""
    shape = bias.shape if bias.ndim == 4 else (1, 1, *bias.shape)
    axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    return scores_bar.sum(axis=axes, keepdims=True).reshape(bias.shape)


def sinks_bar(sinks: Any, softmax: Softmax, mean: Any, logsumexp_bar: Any) -> Any:
    """exp(sink - L) * (L_bar - rowsum(P * P_bar)), summed over batch and queries."""
    total = np.where(softmax.total == 0, 1, softmax.total)
    weight = np.exp(sinks[:, None, None] - softmax.maximum) / total
    return (weight * (logsumexp_bar - mean)).sum(axis=(0, 2, 3))


def groups(gradient: Any, count: int) -> Any:
    """The gradients of the query heads that read one key head, added up."""
    B, H, K, W = gradient.shape
    return gradient.reshape(B, count, H // max(count, 1), K, W).sum(axis=2)


def rounded_like(gradient: Any, argument: Any) -> Any:
    return gradient.astype(argument.dtype)


class Gradients(NamedTuple):
    """Every step under the name by which a fault replaces it."""

    weights_bar: Function = weights_bar
    value_bar: Function = value_bar
    row_mean: Function = row_mean
    scores_bar: Function = scores_bar
    slope: Function = slope
    query_bar: Function = query_bar
    key_bar: Function = key_bar
    bias_bar: Function = bias_bar
    sinks_bar: Function = sinks_bar
    groups: Function = groups
    rounded: Function = rounded_like


# --- the operations ---------------------------------------------------------------------------------------------------


def scores_gradients(
    g: Gradients, softmax: Softmax, query: Any, key: Any, bias: Any, softcap: Any, sinks: Any, mean: Any,
    weights_bar: Any, logsumexp_bar: Any,
) -> dict[str, Any]:  # fmt: skip
    """Gradients of everything before the weights, by name."""
    H, s = query.shape[1], RIGHT
    scores_bar = g.scores_bar(softmax.weights, weights_bar, mean, logsumexp_bar, softmax.allowed)
    slope = g.slope(softmax.products, softmax.scale, softcap)
    scaled_bar = np.where(softmax.allowed, scores_bar * slope, 0)
    wide_query, wide_key = s.widen(query), s.heads(s.widen(key), H)
    found = {
        "query": g.query_bar(scaled_bar, wide_key, softmax.scale, softmax.allowed),
        "key": g.groups(g.key_bar(scaled_bar, wide_query, softmax.scale, softmax.allowed), key.shape[1]),
    }
    if bias is not None:
        found["bias"] = g.bias_bar(scores_bar, scaled_bar, bias)
    if sinks is not None:
        found["sinks"] = g.sinks_bar(s.widen(sinks), softmax, mean, logsumexp_bar)
    return found


def attention_vjp_by(g: Gradients) -> Function:
    """The gradients of `attention` in these steps, by name."""

    @np.errstate(all="ignore")
    def attention_vjp(
        query: Any, key: Any, value: Any, cotangent: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
        softcap: Any = None, sinks: Any = None, dropout_keep: Any = None, dropout_rate: float = 0.0,
        empty_rows: str = "zero",
    ) -> dict[str, Any]:  # fmt: skip
        s, H = RIGHT, query.shape[1]
        softmax = softmax_of(s, query, key, value, mask, bias, scale, softcap, sinks)
        output_bar, wide_value = s.widen(cotangent), s.heads(s.widen(value), H)
        filled, reach = s.fill(softmax.weights, softmax.allowed, empty_rows)
        weights_bar = s.dropout(g.weights_bar(output_bar, wide_value, reach), dropout_keep, dropout_rate)
        mean = g.row_mean(softmax.weights, weights_bar, softmax.allowed)
        found = scores_gradients(g, softmax, query, key, bias, softcap, sinks, mean, weights_bar, 0)
        dropped = s.dropout(filled, dropout_keep, dropout_rate)
        found["value"] = g.groups(g.value_bar(dropped, output_bar, reach), value.shape[1])
        arguments = {"query": query, "key": key, "value": value, "bias": bias, "sinks": sinks}
        return {name: g.rounded(gradient, arguments[name]) for name, gradient in found.items()}

    return attention_vjp


def attention_logsumexp_vjp_by(g: Gradients) -> Function:
    """The gradients of `attention_logsumexp` in these steps, by name."""

    @np.errstate(all="ignore")
    def attention_logsumexp_vjp(
        query: Any, key: Any, cotangent: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
        softcap: Any = None, sinks: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        softmax = softmax_of(RIGHT, query, key, None, mask, bias, scale, softcap, sinks)
        bar, nothing = cotangent[..., None], np.zeros_like(softmax.weights)
        found = scores_gradients(g, softmax, query, key, bias, softcap, sinks, nothing[..., :1], nothing, bar)
        arguments = {"query": query, "key": key, "bias": bias, "sinks": sinks}
        return {name: g.rounded(gradient, arguments[name]) for name, gradient in found.items()}

    return attention_logsumexp_vjp


def differentiated(g: Gradients) -> Function:
    """The right `attention` with these gradients."""
    return declare(vjp=attention_vjp_by(g))(attention_by(RIGHT))


def differentiated_logsumexp(g: Gradients) -> Function:
    """The right `attention_logsumexp` with these gradients."""
    return declare(vjp=attention_logsumexp_vjp_by(g))(attention_logsumexp_by(RIGHT))


GRADIENTS = Gradients()
attention = differentiated(GRADIENTS)
attention_logsumexp = differentiated_logsumexp(GRADIENTS)
