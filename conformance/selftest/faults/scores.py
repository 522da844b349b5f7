"""Scores gone wrong: scale, softcap and bias (ATT-1 to ATT-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import planted
from conformance.selftest.faults.right_numpy import RIGHT, Function, allowed_pairs, attention, scores

# --- scale ------------------------------------------------------------------------------------------------------------


def default_of(number: Function) -> Function:
    """A step that gives `number(query, value)` where no scale is given."""
    return lambda scale, query, value: number(query, value) if scale is None else scale


def root_on_both_sides(scale: float | None, query: Any, value: Any) -> float:
    """The root of |scale| on query and on key."""
    return abs(RIGHT.scale(scale, query, value))


def padded_width(query: Any, value: Any) -> float:
    """Of a query padded to a multiple of 8."""
    return 1 / math.sqrt(-(-query.shape[-1] // 8) * 8)


SCALE = (
    planted("ATT-1", "scale by the model width", scale=default_of(lambda q, v: (q.shape[1] * q.shape[-1]) ** -0.5)),
    planted("ATT-1", "scale by the values' width", scale=default_of(lambda q, v: max(v.shape[-1], 1) ** -0.5)),
    planted("ATT-1", "scale by the padded width", scale=default_of(padded_width)),
    planted("ATT-1", "scale by the whole part of the root", scale=default_of(lambda q, v: 1 / math.isqrt(q.shape[-1]))),
    planted("ATT-1", "a scale of 0 taken for none", scale=lambda s, q, v: s or RIGHT.scale(None, q, v)),
    planted("ATT-1", "scale on query and product", scale=lambda s, q, v: RIGHT.scale(s, q, v) ** 2),
    planted("ATT-1", "root of the scale on either side", scale=root_on_both_sides),
    planted("ATT-1", "scale off by 1e-4", scale=lambda s, q, v: 1.0001 * RIGHT.scale(s, q, v)),
    planted("ATT-1", "a given scale on top of the default",
            scale=lambda s, q, v: (1 if s is None else s) * q.shape[-1] ** -0.5),
)  # fmt: skip

# --- softcap ----------------------------------------------------------------------------------------------------------


def clipped(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    capped = products * scale if softcap is None else np.clip(products * scale, -softcap, softcap)
    return scores(capped, 1, None, bias, allowed)


def capped_before_scale(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    return scores(scores(products, 1, softcap, None, allowed), scale, None, bias, allowed)


def coarse_tanh(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """tanh to 11 bits, as some hardware has it."""
    capped = products * scale
    if softcap is not None:
        capped = softcap * np.round(np.tanh(capped / softcap) * 2**11) / 2**11
    return scores(capped.astype(products.dtype), 1, None, bias, allowed)


def capped_bias(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """The bias inside the cap."""
    return scores(scores(products, scale, None, bias, allowed), 1, softcap, None, allowed)


def uncapped_beside_scale(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, softcap: Any = None
) -> Any:
    """Only the default scale's path has a softcap."""
    return attention(query, key, value, mask=mask, scale=scale, softcap=softcap if scale is None else None)


SOFTCAP = (
    planted("ATT-2", "scores clipped", scores=clipped),
    planted("ATT-2", "softcap before the scale", scores=capped_before_scale),
    planted("ATT-2", "tanh to 11 bits", scores=coarse_tanh),
    Fault("ATT-2", "no softcap beside a given scale", "attention", uncapped_beside_scale, attention),
)  # fmt: skip

# --- bias -------------------------------------------------------------------------------------------------------------


def bias_as(change: Function) -> Function:
    """A step that adds `change(bias, products, scale)` in place of the bias."""

    def changed(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
        given = None if bias is None else change(bias, products, scale)
        return scores(products, scale, softcap, given, allowed)

    return changed


def first_of(axis: int) -> Function:
    return bias_as(lambda bias, products, scale: bias.take([0], axis) if bias.ndim == 4 else bias)


def every_other_head(bias: Any, products: Any, scale: float) -> Any:
    """Two neighbouring query heads get the bias of the first, as if it were one for each key head."""
    pairs = bias.ndim == 4 and bias.shape[1] > 1 and bias.shape[1] % 2 == 0
    return bias[:, np.arange(bias.shape[1]) // 2 * 2] if pairs else bias


def capped_with_the_bias(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """-inf in the bias becomes -softcap, and is nothing forbidden any more."""
    added = scores(products, scale, None, bias, allowed)
    return added if softcap is None else softcap * np.tanh(added / softcap)


def narrow_bias(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    return attention(query, key, value, mask=mask, bias=None if bias is None else bias.astype(query.dtype), scale=scale)


def promoted(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The result as wide as the bias."""
    output = attention(query, key, value, mask=mask, bias=bias, scale=scale)
    return output if bias is None else output.astype(np.result_type(output.dtype, bias.dtype))


def mask_guards_empty_rows(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """A row that the bias has emptied is 0 / 0: only the mask is looked at for empty rows."""
    output = attention(query, key, value, mask=mask, bias=bias)
    shape = (*query.shape[:3], key.shape[2])
    by_mask, by_both = (allowed_pairs(mask, b, shape).any(-1, keepdims=True) for b in (None, bias))
    return np.where(by_mask & ~by_both, np.nan, output).astype(output.dtype)


BIAS = (
    planted("ATT-3", "bias scaled", scores=bias_as(lambda bias, products, scale: bias * abs(scale))),
    planted("ATT-3", "bias subtracted",
            scores=bias_as(lambda bias, products, scale: np.where(np.isinf(bias), bias, -bias))),
    planted("ATT-3", "bias of batch element 0 for all", scores=first_of(0)),
    planted("ATT-3", "bias of head 0 for all", scores=first_of(1)),
    planted("ATT-3", "bias of every other head for grouped heads", scores=bias_as(every_other_head)),
    planted("ATT-3", "bias inside the softcap", scores=capped_bias),
    planted("ATT-3", "softcap of -inf in the bias", scores=capped_with_the_bias,
            allowed=lambda mask, bias, shape: allowed_pairs(mask, None, shape)),
    planted("ATT-6", "-inf in the bias taken for the lowest number",
            allowed=lambda mask, bias, shape: allowed_pairs(mask, None, shape),
            scores=bias_as(lambda bias, products, scale: np.maximum(bias, np.finfo(np.float32).min / 2))),
    Fault("ATT-6", "rows that the bias has emptied are 0 / 0", "attention", mask_guards_empty_rows, attention),
    Fault("ATT-3", "bias rounded to the inputs' dtype", "attention", narrow_bias, attention),
    Fault("ATT-3", "result as wide as the bias", "attention", promoted, attention),
)  # fmt: skip

FAULTS = (*SCALE, *SOFTCAP, *BIAS)
