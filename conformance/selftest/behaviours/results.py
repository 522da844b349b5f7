"""Results of another dtype or shape, errors for sizes that must be answered, and a mean that is never exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.selftest.behaviours.behaviour import (
    Arguments,
    Behaviour,
    misuse_arguments,
    spoil_gradients,
    spoil_result,
    wrap,
)
from reference_numpy import layer_norm
from reference_numpy.dtypes import widen

if TYPE_CHECKING:
    from reference_numpy.attention_vjp import AttentionGradients


def widen_narrow(array: np.ndarray) -> Any:
    """float32 for 16 bits."""
    return array.astype(np.float32) if array.dtype in (np.float16, ml_dtypes.bfloat16) else array


@np.errstate(all="ignore")
def center_by_rounded_mean(a: Arguments) -> Any:
    """Deviations from a mean that is rounded: those of a constant row are not 0, and which they are is chance."""
    x, axes = widen(a["x"]), tuple(range(-a["weight"].ndim, 0))
    deviation = x - np.mean(x, axes, keepdims=True)
    normalized = deviation / np.sqrt(np.mean(deviation**2, axes, keepdims=True) + x.dtype.type(a["eps"]))
    output = normalized * widen(a["weight"])
    return (output if a["bias"] is None else output + widen(a["bias"])).astype(a["x"].dtype)


def narrow_bias_gradient(a: Arguments, gradients: AttentionGradients) -> Any:
    """The gradient of a bias that is wider than the query is rounded to the query's dtype."""
    return gradients if gradients.bias is None else gradients._replace(bias=gradients.bias.astype(a["query"].dtype))


BEHAVIOURS = (
    spoil_result("ATT-9", "result wider than the inputs", lambda a, output: widen_narrow(output)),
    spoil_result("ATT-3", "result as wide as the bias", lambda a, output:
                 output if a["bias"] is None else output.astype(np.result_type(widen_narrow(a["bias"])))),
    spoil_result("ATT-14", "weights in the compute dtype",
                 lambda a, weights: widen_narrow(weights), "attention_weights"),
    spoil_result("ATT-14", "log-sum-exp in the inputs' dtype",
                 lambda a, logsumexp: logsumexp.astype(a["query"].dtype), "attention_logsumexp"),
    spoil_result("ATT-14", "log-sum-exp with the axis of keys",
                 lambda a, logsumexp: logsumexp[..., None], "attention_logsumexp"),
    spoil_result("ATT-14", "merged log-sum-exp in the outputs' dtype",
                 lambda a, merged: (merged[0], merged[1].astype(merged[0].dtype)), "merge_attention"),
    Behaviour("NORM-3", "deviations from a rounded mean", wrap(layer_norm, center_by_rounded_mean), layer_norm,
              "layer_norm"),
    spoil_result("NORM-2", "result wider than x", lambda a, output: widen_narrow(output), "layer_norm"),
    spoil_gradients("ATT-12", "gradients as wide as inside",
                    lambda a, gradients: gradients._replace(query=widen_narrow(gradients.query))),
    spoil_gradients("ATT-12", "gradient of a wider bias in 16 bits", narrow_bias_gradient),
    misuse_arguments("ATT-8", "no keys are an error", lambda a: a["key"].max(axis=2)),
    misuse_arguments("ATT-8", "an empty batch is an error", lambda a: a["query"][0]),
)  # fmt: skip
