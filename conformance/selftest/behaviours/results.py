"""Results of another dtype or shape, errors for sizes that must be answered, and a mean that is never exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import reference_numpy
from conformance.selftest.behaviours.behaviour import (
    Arguments,
    Behaviour,
    change_arguments,
    change_result,
    differentiate,
    wrap,
)
from reference_numpy import attention, attention_vjp, layer_norm
from reference_numpy.dtypes import widen


def widen_narrow(array: Any) -> Any:
    """float32 for 16 bits."""
    return array.astype(np.float32) if array.dtype in (np.float16, ml_dtypes.bfloat16) else array


def widen_as_bias(a: Arguments, output: Any) -> Any:
    return output if a["bias"] is None else output.astype(np.result_type(widen_narrow(a["bias"])))


def narrow_logsumexp(a: Arguments, logsumexp: Any) -> Any:
    return logsumexp.astype(a["query"].dtype)


def narrow_merged(a: Arguments, merged: Any) -> Any:
    return merged[0], merged[1].astype(merged[0].dtype)


def keep_axis(a: Arguments, logsumexp: Any) -> Any:
    """[B, H, Q, 1], as the maximum was kept."""
    return logsumexp[..., None]


@np.errstate(all="ignore")
def center_by_rounded_mean(a: Arguments) -> Any:
    """Deviations from a mean that is rounded: those of a constant row are not 0, and which they are is chance."""
    x, axes = widen(a["x"]), tuple(range(-a["weight"].ndim, 0))
    deviation = x - np.mean(x, axes, keepdims=True)
    normalized = deviation / np.sqrt(np.mean(deviation**2, axes, keepdims=True) + x.dtype.type(a["eps"]))
    output = normalized * widen(a["weight"])
    return (output if a["bias"] is None else output + widen(a["bias"])).astype(a["x"].dtype)


def reduce_keys(a: Arguments) -> None:
    """The maximum over no keys is an error."""
    np.max(a["key"], axis=2)


def look_at_first(a: Arguments) -> None:
    """The first batch element is looked at for its shape."""
    a["query"][0].shape  # noqa: B018


def widen_gradients(a: Arguments, gradients: Any) -> Any:
    return gradients._replace(query=widen_narrow(gradients.query))


def narrow_bias_gradient(a: Arguments, gradients: Any) -> Any:
    """The gradient of a bias that is wider than the query is rounded to the query's dtype."""
    return gradients if gradients.bias is None else gradients._replace(bias=gradients.bias.astype(a["query"].dtype))


right_gradients = differentiate(attention, attention_vjp)


def result(rule: str, name: str, change: Callable[[Arguments, Any], Any], operation: str = "attention") -> Behaviour:
    right = getattr(reference_numpy, operation)
    return Behaviour(rule, name, change_result(right, change), right, operation)


def gradient(name: str, change: Callable[[Arguments, Any], Any]) -> Behaviour:
    return Behaviour("ATT-12", name, differentiate(attention, change_result(attention_vjp, change)), right_gradients)


def error(name: str, change: Callable[[Arguments], None]) -> Behaviour:
    return Behaviour("ATT-8", name, change_arguments(attention, change), attention)


BEHAVIOURS = (
    result("ATT-9", "result wider than the inputs", lambda a, output: widen_narrow(output)),
    result("ATT-3", "result as wide as the bias", widen_as_bias),
    result("ATT-14", "weights in the compute dtype", lambda a, weights: widen_narrow(weights), "attention_weights"),
    result("ATT-14", "log-sum-exp in the inputs' dtype", narrow_logsumexp, "attention_logsumexp"),
    result("ATT-14", "log-sum-exp with the axis of keys", keep_axis, "attention_logsumexp"),
    result("ATT-14", "merged log-sum-exp in the outputs' dtype", narrow_merged, "merge_attention"),
    Behaviour("NORM-3", "deviations from a rounded mean", wrap(layer_norm, center_by_rounded_mean), layer_norm,
              "layer_norm"),
    result("NORM-2", "result wider than x", lambda a, output: widen_narrow(output), "layer_norm"),
    gradient("gradients as wide as inside", widen_gradients),
    gradient("gradient of a wider bias in 16 bits", narrow_bias_gradient),
    error("no keys are an error", reduce_keys),
    error("an empty batch is an error", look_at_first),
)  # fmt: skip
