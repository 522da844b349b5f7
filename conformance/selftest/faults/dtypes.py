"""Too few digits, or too many (ATT-9)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.selftest.faults import right_numpy as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_numpy import RIGHT, Function, attention, attention_by


def planted(name: str, **steps: Function) -> Fault:
    return Fault("ATT-9", name, "attention", attention_by(RIGHT._replace(**steps)), attention)


def to(dtype: Any, array: Any) -> Any:
    """Rounded to the dtype, and kept as it was."""
    return array.astype(dtype).astype(array.dtype)


def truncated(array: Any, bits: int) -> Any:
    """float32 with so many fewer bits of its 23, rounded to nearest; other dtypes as they are."""
    if array.dtype != np.float32:
        return array
    raw = np.ascontiguousarray(array).view(np.uint32) + np.uint32(1 << (bits - 1))
    return (raw >> np.uint32(bits) << np.uint32(bits)).view(np.float32).reshape(array.shape)


def tf32(array: Any) -> Any:
    return truncated(array, 13)


def rounded_weights(dtype: Any) -> Function:
    """Weights in this dtype before they are multiplied with the values; float64 stays."""

    def weighted_sum(weights: Any, value: Any, allowed: Any) -> Any:
        weights = weights if weights.dtype == np.float64 else to(dtype, weights)
        return right.weighted_sum(weights, value, allowed)

    return weighted_sum


def half_sums(weights: Any, value: Any, allowed: Any) -> Any:
    """Products of float32, added up one after the other in float16."""
    output = np.zeros((*weights.shape[:-1], value.shape[-1]), np.float16)
    for j in range(weights.shape[-1]):
        output = output + (weights[..., j, None] * value[:, :, None, j]).astype(np.float16)
    return output.astype(weights.dtype)


def sum_in_half(exponentials: Any, maximum: Any, sinks: Any) -> Any:
    """The denominator in bfloat16."""
    return to(ml_dtypes.bfloat16, right.total(exponentials, maximum, sinks))


def toward_zero(output: Any, dtype: Any) -> Any:
    """float32 cut off to bfloat16, as by a shift of 16 bits; other dtypes right."""
    if dtype != ml_dtypes.bfloat16:
        return output.astype(dtype)
    return (np.ascontiguousarray(output, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


def through_bfloat16(output: Any, dtype: Any) -> Any:
    return output.astype(ml_dtypes.bfloat16).astype(dtype) if dtype == np.float16 else output.astype(dtype)


def narrow(array: Any) -> Any:
    return None if array is None else array.astype(np.float32)


def narrow_scores(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """Scores kept in bfloat16, which is the range of float32 with 8 bits."""
    return to(ml_dtypes.bfloat16, right.scores(products, scale, softcap, bias, allowed))


def half_products(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    """float16 inputs have their products rounded to float16, before the scale; other dtypes are right."""

    def products(query: Any, key: Any, allowed: Any) -> Any:
        return to(np.float16, right.products(query, key, allowed))

    steps = RIGHT._replace(products=products) if query.dtype == np.float16 else RIGHT
    return attention_by(steps)(query, key, value, mask=mask, scale=scale)


FAULTS = (
    planted("products in TF32", products=lambda q, k, allowed: right.products(tf32(q), tf32(k), allowed)),
    planted("weighted sums in TF32", weighted_sum=lambda w, v, allowed: right.weighted_sum(tf32(w), tf32(v), allowed)),
    planted("products of bfloat16 inside float32", products=lambda q, k, allowed: right.products(
        truncated(q, 16), truncated(k, 16), allowed)),
    planted("weights in bfloat16", weighted_sum=rounded_weights(ml_dtypes.bfloat16)),
    planted("weights in float16", weighted_sum=rounded_weights(np.float16)),
    planted("values added up in float16", weighted_sum=half_sums),
    planted("denominator in bfloat16", total=sum_in_half),
    planted("scores in bfloat16", scores=narrow_scores),
    planted("float64 in float32", widen=narrow),
    planted("softmax of float64 in float32",
            exponentials=lambda shifted, allowed: to(np.float32, right.exponentials(shifted, allowed))),
    planted("result wider than the inputs", rounded=lambda output, dtype: output),
    planted("bfloat16 by cutting off", rounded=toward_zero),
    planted("float16 by way of bfloat16", rounded=through_bfloat16),
    Fault("ATT-9", "products of float16 in float16", "attention", half_products, attention),
)  # fmt: skip
