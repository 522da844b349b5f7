"""Multi-head attention, the feed-forward networks and SiLU gone wrong (MHA-1, MHA-2, FFN-1, FFN-2, ACT-1)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_layers as right
from conformance.selftest.faults import right_numpy
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_layers import (
    GATED,
    NETWORK,
    PROJECTING,
    feed_forward_by,
    gated_feed_forward_by,
    multi_head_attention_by,
)
from conformance.selftest.faults.right_numpy import Function
from specification import Linear

# --- multi-head attention ---------------------------------------------------------------------------------------------


def heads(rule: str, name: str, **steps: Function) -> Fault:
    function = multi_head_attention_by(PROJECTING._replace(**steps))
    return Fault(rule, name, "multi_head_attention", function, right.multi_head_attention)


def interleaved(x: Any, heads: int) -> Any:
    """Head h takes every H-th column."""
    B, T, width = x.shape
    return x.reshape(B, T, width // heads, heads).transpose(0, 3, 1, 2)


def rows_first(x: Any) -> Any:
    """[B, H, T, W] read as [B, T, H * W] without moving the heads."""
    B, H, T, W = x.shape
    return x.reshape(B, T, H * W)


def model_scale(query: Any, key: Any, value: Any, *, scale: Any = None, **options: Any) -> Any:
    """1 / sqrt(E)."""
    scale = (query.shape[1] * query.shape[3]) ** -0.5 if scale is None else scale
    return right_numpy.attention(query, key, value, scale=scale, **options)


def without_bias(projection: Any, x: Any) -> Any:
    return right.linear(projection._replace(bias=None), x)


def square_weights_transposed(projection: Any, x: Any) -> Any:
    """[out, in] where it fits."""
    weight = projection.weight
    return right.linear(projection._replace(weight=weight.T) if weight.shape[0] == weight.shape[1] else projection, x)


def flat_masks(query: Any, key: Any, value: Any, *, mask: Any = None, **options: Any) -> Any:
    """A batch's mask repeated H times one after the other."""
    if mask is not None and mask.ndim == 4 and mask.shape[1] == 1 and mask.shape[0] == query.shape[0]:
        shape = (*query.shape[:3], key.shape[2])
        mask = np.tile(mask[:, 0], (query.shape[1], 1, 1)).reshape(shape)
    return right_numpy.attention(query, key, value, mask=mask, **options)


def in_reverse(projection: Any) -> Any:
    return right.joined(projection if isinstance(projection, Linear) else projection[::-1])


def first_bias(projection: Any) -> Any:
    """Every head has the bias of the first."""
    whole = right.joined(projection)
    if isinstance(projection, Linear) or whole.bias is None:
        return whole
    return whole._replace(bias=np.concatenate([projection[0].bias] * len(projection)))


def stacked(projection: Any) -> Any:
    """Columns of all heads interleaved."""
    whole = right.joined(projection)
    if isinstance(projection, Linear):
        return whole
    count = len(projection)
    order = np.arange(whole.weight.shape[1]).reshape(count, -1).T.reshape(-1)
    return Linear(whole.weight[:, order], None if whole.bias is None else whole.bias[order])


MULTI_HEAD = (
    heads("MHA-1", "heads interleaved", split=interleaved),
    heads("MHA-1", "heads concatenated by rows", concatenated=rows_first),
    heads("MHA-1", "scale by the model width", attention=model_scale),
    heads("MHA-1", "biases forgotten", linear=without_bias),
    heads("MHA-1", "batch mask repeated over flattened heads", attention=flat_masks),
    heads("MHA-1", "square weights transposed", linear=square_weights_transposed),
    heads("MHA-2", "heads joined in reverse", joined=in_reverse),
    heads("MHA-2", "columns of heads interleaved", joined=stacked),
    heads("MHA-2", "bias of the first head for all", joined=first_bias),
)  # fmt: skip

# --- feed-forward network ---------------------------------------------------------------------------------------------


def network(name: str, **steps: Function) -> Fault:
    return Fault("FFN-1", name, "feed_forward", feed_forward_by(NETWORK._replace(**steps)), right.feed_forward)


def by_sigmoid(x: Any) -> Any:
    """x * sigmoid(1.702 x)."""
    return x / (1 + np.exp(-1.702 * x))


def short_constant(x: Any) -> Any:
    """0.0447 for 0.044715."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.0447 * x**3)))


NETWORKS = (
    network("gelu by tanh", gelu=right.gelu_tanh),
    network("gelu_tanh by erf", gelu_tanh=right.gelu),
    network("gelu by a sigmoid", gelu=by_sigmoid),
    network("gelu_tanh with a short constant", gelu_tanh=short_constant),
    network("leaky relu", relu=lambda x: np.where(x > 0, x, x * x.dtype.type(0.01))),
    network("silu by a sigmoid of 1.702 x", silu=by_sigmoid),
    network("relu up to 6", relu=lambda x: np.clip(x, 0, 6)),
    network("outer bias forgotten", outer=without_bias),
    network("dropout not divided by 1 - rate", dropout=lambda x, keep, rate: x if keep is None else x * keep),
)  # fmt: skip

# --- gated feed-forward network ---------------------------------------------------------------------------------------


def gated(name: str, **steps: Any) -> Fault:
    function = gated_feed_forward_by(GATED._replace(**steps))
    return Fault("FFN-2", name, "gated_feed_forward", function, right.gated_feed_forward)


def other_side(gate: Any, value: Any, activation: Function) -> Any:
    return activation(value) * gate


def exact_for_tanh(gate: Any, value: Any, activation: Function) -> Any:
    return (right.gelu if activation is right.gelu_tanh else activation)(gate) * value


def quick(gate: Any, value: Any, activation: Function) -> Any:
    """A sigmoid of 1.702 x in the place of SiLU."""
    return (by_sigmoid if activation is right.silu_steps else activation)(gate) * value


@np.errstate(all="ignore")
def gate_constant(
    parameters: Any,
    x: Any,
    cotangent: Any,
    *,
    activation: str = "silu",
    dropout_keep: Any = None,
    dropout_rate: Any = 0,
) -> Any:
    """The gradient of x comes through the inner projection alone."""
    options = {"activation": activation, "dropout_keep": dropout_keep, "dropout_rate": dropout_rate}
    found = right.gated_feed_forward_vjp(parameters, x, cotangent, **options)
    bar = right_numpy.widen(cotangent) @ right_numpy.widen(parameters.outer.weight).T
    gate = getattr(NETWORK, activation)(right_numpy.widen(right.linear(parameters.gate, x)))
    inside = right_numpy.dropout(bar * gate, dropout_keep, dropout_rate)
    return found._replace(x=(inside @ right_numpy.widen(parameters.inner.weight).T).astype(x.dtype))


def biases_not_summed(parameters: Any, x: Any, cotangent: Any, **options: Any) -> Any:
    """The gate's bias gets the gradient of the inner one's."""
    found = right.gated_feed_forward_vjp(parameters, x, cotangent, **options)
    gradients: Any = found.parameters
    gate = gradients.gate._replace(bias=gradients.inner.bias)
    return found._replace(parameters=gradients._replace(gate=gate))


def narrow_gate(gate: Any, value: Any, activation: Function) -> Any:
    return right_numpy.widen(activation(gate).astype(ml_dtypes.bfloat16)) * value


GATES = (
    gated("the other projection activated", product=other_side),
    gated("both projections activated", product=lambda gate, value, activation: activation(gate) * activation(value)),
    gated("activation of the product", product=lambda gate, value, activation: activation(gate * value)),
    gated("the gate added", product=lambda gate, value, activation: activation(gate) + value),
    gated("no activation", product=lambda gate, value, activation: gate * value),
    gated("gelu_tanh by erf in the gate", product=exact_for_tanh),
    gated("silu by a sigmoid of 1.702 x in the gate", product=quick),
    gated("biases inside forgotten", linear=without_bias),
    gated("outer bias forgotten", outer=without_bias),
    gated("dropout not divided by 1 - rate", dropout=lambda x, keep, rate: x if keep is None else x * keep),
    gated("gradient of the gate's bias is the other's", gradients=biases_not_summed),
    replace(gated("activation rounded to bfloat16", product=narrow_gate), given={"dtypes": ["bfloat16"]}),
    gated("no gradient of x through the gate", gradients=gate_constant),
)  # fmt: skip

# --- SiLU -------------------------------------------------------------------------------------------------------------


def split_sigmoid(x: Any) -> Any:
    """exp(-x) for x of 0 or more, exp(x) below, so that neither overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def by_root(x: Any) -> Any:
    """x sigmoid(x), below 0 by the root of exp(x), and never of an infinity below."""
    x = np.maximum(x, np.finfo(x.dtype).min)
    root = np.exp(np.minimum(x, 0) / 2)
    return np.where(x >= 0, x * split_sigmoid(x), x * root / (1 + root * root) * root)


def slope_by_root(x: Any) -> Any:
    """sigmoid(x) (1 + x sigmoid(-x)), in the same way."""
    x = np.clip(x, np.finfo(x.dtype).min, np.finfo(x.dtype).max)
    root = np.exp(np.minimum(x, 0) / 2)
    inside = 1 + x * split_sigmoid(-x)
    return np.where(x >= 0, split_sigmoid(x) * inside, root * inside / (1 + root * root) * root)


def silu_by(
    value: Function = by_root, slope: Function = slope_by_root, widen: Function = right_numpy.widen
) -> Function:
    """`silu` from `value(x)` and `slope(x)` in the dtype that `widen` gives."""

    @np.errstate(all="ignore")
    def vjp(x: Any, cotangent: Any) -> dict[str, Any]:
        return {"x": np.asarray(right_numpy.widen(cotangent) * slope(widen(x)), x.dtype)}

    @declare(vjp=vjp)
    @np.errstate(all="ignore")
    def silu(x: Any) -> Any:
        return np.asarray(value(widen(x)), x.dtype)

    return silu


right_silu = silu_by()


def unit(name: str, *steps: Function, **named: Function) -> Fault:
    return Fault("ACT-1", name, "silu", silu_by(*steps, **named), right_silu)


def by_tanh(x: Any) -> Any:
    """sigmoid(x) as (1 + tanh(x / 2)) / 2, which cancels for negative x."""
    return x * (0.5 * (1 + np.tanh(0.5 * x)))


def in_float16(x: Any) -> Any:
    """But for float64, which is left alone."""
    return x if x.dtype == np.float64 else x.astype(np.float16)


def normal_only(x: Any) -> Any:
    """x times a sigmoid that is 0 where it would be subnormal, as fast modes have it."""
    sigmoid = split_sigmoid(x)
    return np.maximum(x, np.finfo(x.dtype).min) * np.where(sigmoid < np.finfo(x.dtype).tiny, 0, sigmoid)


def nothing_below(x: Any) -> Any:
    """0 from -20 on."""
    return np.where(x < -20, 0, by_root(x))


UNITS = (
    unit("sigmoid of 1.702 x", lambda x: by_root(x * x.dtype.type(1.702)) / x.dtype.type(1.702)),
    unit("sigmoid by a tanh", by_tanh),
    unit("silu in float16", widen=in_float16),
    unit("hard swish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    unit("exp(-x) overflows", lambda x: np.maximum(x, np.finfo(x.dtype).min) / (1 + np.exp(-x))),
    unit("no subnormal sigmoid", normal_only),
    unit("silu 0 below -20", nothing_below),
    unit("-infinity times 0", lambda x: x * split_sigmoid(x)),
    unit("NaN taken for 0", lambda x: by_root(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf))),
    unit("gradient of silu without x times the slope", slope=split_sigmoid),
    unit("gradient of silu by the slope of a GELU", slope=lambda x: slope_by_root(x * x.dtype.type(1.702))),
    unit("infinity times 0 in the gradient", slope=lambda x: split_sigmoid(x) * (1 + x * split_sigmoid(-x))),
    unit("NaN's gradient 0", slope=lambda x: np.nan_to_num(slope_by_root(x))),
)  # fmt: skip

FAULTS = (*MULTI_HEAD, *NETWORKS, *GATES, *UNITS)
