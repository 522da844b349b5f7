"""Multi-head attention and the feed-forward network gone wrong (MHA-1, MHA-2, FFN-1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.faults import right_layers as right
from conformance.selftest.faults import right_numpy
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_layers import (
    NETWORK,
    PROJECTING,
    feed_forward_by,
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
    network("relu up to 6", relu=lambda x: np.clip(x, 0, 6)),
    network("outer bias forgotten", outer=without_bias),
    network("dropout not divided by 1 - rate", dropout=lambda x, keep, rate: x if keep is None else x * keep),
)  # fmt: skip

FAULTS = (*MULTI_HEAD, *NETWORKS)
