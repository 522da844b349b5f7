"""Gradients gone wrong beside a right result (ATT-12, and ATT-2, ATT-6, ATT-7, ATT-9, ATT-14 in their gradients)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_gradients as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_gradients import (
    GRADIENTS,
    attention,
    attention_logsumexp,
    attention_vjp_by,
    differentiated,
    differentiated_logsumexp,
)
from conformance.selftest.faults.right_numpy import RIGHT, Function, Softmax
from conformance.selftest.faults.right_numpy import attention as forward


def planted(name: str, rule: str = "ATT-12", **steps: Function) -> Fault:
    return Fault(rule, name, "attention", differentiated(GRADIENTS._replace(**steps)), attention)


# --- softmax and scores -----------------------------------------------------------------------------------------------


def no_mean(weights: Any, weights_bar: Any, allowed: Any) -> Any:
    return np.zeros_like(weights[..., :1])


def mean_over_all_keys(weights: Any, weights_bar: Any, allowed: Any) -> Any:
    """The plain mean of P_bar."""
    count = np.maximum(allowed.sum(-1, keepdims=True), 1)
    return np.where(allowed, weights_bar, 0).sum(-1, keepdims=True).astype(weights.dtype) / count.astype(weights.dtype)


def narrow_mean(weights: Any, weights_bar: Any, allowed: Any) -> Any:
    """From a result that was rounded to 16 bits."""
    mean = right.row_mean(weights, weights_bar, allowed)
    return mean.astype(np.float16).astype(mean.dtype)


def narrow_scores_bar(weights: Any, weights_bar: Any, mean: Any, logsumexp_bar: Any, allowed: Any) -> Any:
    """Rounded to float16 before the last products."""
    found = right.scores_bar(weights, weights_bar, mean, logsumexp_bar, allowed)
    return found.astype(np.float16).astype(found.dtype)


def straight_slope(products: Any, scale: float, softcap: float | None) -> Any:
    return np.ones_like(products)


def slope_of_the_result(products: Any, scale: float, softcap: float | None) -> Any:
    """1 - scores^2, without the division by the cap."""
    if softcap is None:
        return np.ones_like(products)
    return 1 - (softcap * np.tanh(products * scale / softcap)) ** 2


def unscaled(bar: Any, other: Any, scale: float, allowed: Any) -> Any:
    return right.query_bar(bar, other, 1.0, allowed)


def default_scale(bar: Any, query: Any, scale: float, allowed: Any) -> Any:
    """1 / sqrt(D) whatever scale was given."""
    return right.key_bar(bar, query, query.shape[-1] ** -0.5, allowed)


def mean_of_groups(gradient: Any, count: int) -> Any:
    return right.groups(gradient, count) * (count / max(gradient.shape[1], 1))


def one_of_the_group(gradient: Any, count: int) -> Any:
    """The last one overwrites the others."""
    B, H, K, W = gradient.shape
    return gradient.reshape(B, count, H // max(count, 1), K, W)[:, :, -1]


def tiled_groups(gradient: Any, count: int) -> Any:
    """Query heads h, h + G, h + 2 G, ... are added up."""
    B, H, K, W = gradient.shape
    return gradient.reshape(B, H // max(count, 1), count, K, W).sum(axis=1)


# --- bias and sinks ---------------------------------------------------------------------------------------------------


def mean_over_broadcast(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    shape = bias.shape if bias.ndim == 4 else (1, 1, *bias.shape)
    return right.bias_bar(scores_bar, scaled_bar, bias) * (np.prod(shape) / max(scores_bar.size, 1))


def bias_of_element_0(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    """Where the bias was broadcast over the batch, only the first element's gradient is taken."""
    narrow = bias.ndim == 2 or bias.shape[0] == 1
    return right.bias_bar(scores_bar[:1] if narrow else scores_bar, scaled_bar, bias)


def bias_through_the_slope(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    return right.bias_bar(scaled_bar, scaled_bar, bias)


def bias_with_infinities(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    """0 * -inf where the bias forbids."""
    return right.bias_bar(scores_bar, scaled_bar, bias) + np.where(np.isinf(bias), 0 * bias, 0)


def bias_in_16_bits(scores_bar: Any, scaled_bar: Any, bias: Any) -> Any:
    found = right.bias_bar(scores_bar, scaled_bar, bias)
    return found.astype(np.float16).astype(found.dtype)


def no_sinks(sinks: Any, softmax: Softmax, mean: Any, logsumexp_bar: Any) -> Any:
    return np.zeros_like(sinks)


def sinks_of_element_0(sinks: Any, softmax: Softmax, mean: Any, logsumexp_bar: Any) -> Any:
    parts: Any = (part[:1] if isinstance(part, np.ndarray) else part for part in softmax)
    first = Softmax(*parts)
    return right.sinks_bar(sinks, first, mean[:1], logsumexp_bar)


def sinks_of_other_sign(sinks: Any, softmax: Softmax, mean: Any, logsumexp_bar: Any) -> Any:
    return -right.sinks_bar(sinks, softmax, mean, logsumexp_bar)


# --- values, dropout, empty rows --------------------------------------------------------------------------------------


def narrow_weights(weights: Any, output_bar: Any, reach: Any) -> Any:
    """P in float16 before it is multiplied with O_bar."""
    return right.value_bar(weights.astype(np.float16).astype(weights.dtype), output_bar, reach)


def without_dropout(bar: str) -> Function:
    """The gradients of the arguments named are those of the call without dropout."""

    def vjp(query: Any, key: Any, value: Any, cotangent: Any, *, mask: Any = None, dropout_keep: Any = None,
            dropout_rate: float = 0.0) -> dict[str, Any]:  # fmt: skip
        whole = attention_vjp_by(GRADIENTS)
        kept = whole(query, key, value, cotangent, mask=mask, dropout_keep=dropout_keep, dropout_rate=dropout_rate)
        return kept | {bar: whole(query, key, value, cotangent, mask=mask)[bar]}

    @declare(vjp=vjp)
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, dropout_keep: Any = None,
                  dropout_rate: float = 0.0) -> Any:  # fmt: skip
        return forward(query, key, value, mask=mask, dropout_keep=dropout_keep, dropout_rate=dropout_rate)

    return attention


def mean_of_empty_rows(weights: Any, output_bar: Any, reach: Any) -> Any:
    """1 / K of it for every value, as if the row had been filled."""
    weights, reach = RIGHT.fill(weights, reach, "mean")
    return right.value_bar(weights, output_bar, reach)


def empty_rows_by_nan(weights: Any, weights_bar: Any, mean: Any, logsumexp_bar: Any, allowed: Any) -> Any:
    """0 / 0 in the rows that allow nothing, as automatic differentiation of a guarded softmax gives it."""
    found = right.scores_bar(weights, weights_bar, mean, logsumexp_bar, allowed)
    return np.where(allowed.any(-1, keepdims=True), found, np.nan)


def nan_query(bar: Any, key: Any, scale: float, allowed: Any) -> Any:
    return scale * bar @ key


FAULTS = (
    planted("no mean in the softmax", row_mean=no_mean),
    planted("plain mean in the softmax", row_mean=mean_over_all_keys),
    planted("mean in the softmax from a rounded output", row_mean=narrow_mean),
    planted("gradient of the scores in float16", scores_bar=narrow_scores_bar),
    planted("no slope of the softcap", slope=straight_slope, rule="ATT-2"),
    planted("slope of the softcap without its division", slope=slope_of_the_result, rule="ATT-2"),
    planted("query's gradient without the scale", query_bar=unscaled),
    planted("key's gradient by the default scale", key_bar=default_scale, rule="ATT-1"),
    planted("gradients of a group averaged", groups=mean_of_groups, rule="ATT-7"),
    planted("gradient of the last head of a group", groups=one_of_the_group, rule="ATT-7"),
    planted("gradients of tiled groups", groups=tiled_groups, rule="ATT-7"),
    planted("gradient of a broadcast bias averaged", bias_bar=mean_over_broadcast),
    planted("gradient of a broadcast bias from element 0", bias_bar=bias_of_element_0),
    planted("bias's gradient through the softcap's slope", bias_bar=bias_through_the_slope),
    planted("NaN in the gradient of a bias of -inf", bias_bar=bias_with_infinities, rule="ATT-3"),
    planted("no gradient of the sinks", sinks_bar=no_sinks),
    planted("gradient of the sinks from element 0", sinks_bar=sinks_of_element_0),
    planted("gradient of the sinks of the other sign", sinks_bar=sinks_of_other_sign),
    planted("value's gradient by weights in float16", value_bar=narrow_weights),
    planted("empty rows pass on to the values", value_bar=mean_of_empty_rows, rule="ATT-6"),
    planted("empty rows pass on NaN", scores_bar=empty_rows_by_nan, query_bar=nan_query, rule="ATT-6"),
    planted("gradients as wide as inside", rounded=lambda gradient, argument: gradient),
    planted("gradient of a wider bias in 16 bits", bias_bar=bias_in_16_bits),
    Fault("ATT-11", "no dropout in the value's gradient", "attention", without_dropout("value"), attention),
    Fault("ATT-11", "no dropout in the key's gradient", "attention", without_dropout("key"), attention),
    Fault("ATT-14", "no slope of the softcap behind the log-sum-exp", "attention_logsumexp",
          differentiated_logsumexp(GRADIENTS._replace(slope=straight_slope)), attention_logsumexp),
    Fault("ATT-14", "no gradient of the sinks from the log-sum-exp", "attention_logsumexp",
          differentiated_logsumexp(GRADIENTS._replace(sinks_bar=no_sinks)), attention_logsumexp),
)  # fmt: skip
