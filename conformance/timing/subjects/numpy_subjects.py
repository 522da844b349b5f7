"""NumPy: the definition, and the dozen lines that everybody has written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.timing.subjects.timed_subject import (
    Layout,
    Prepared,
    Results,
    Subject,
    heads_of,
    usual_layout,
    without,
)
from conformance.timing.timed_case import Arrays, Case, dense_mask


def prepared(
    case: Case, device: str, function: Any, given: Any = None, *, gradients: Any = None, layout: Layout | None = None
) -> Prepared:
    """function(*inputs, given(mask)), and gradients(*inputs, cotangent, given(mask)) of the inputs.

    Without `given`, function(*inputs) and gradients(*inputs, cotangent).
    """
    layout = layout or usual_layout(case)

    def load(arrays: Arrays, mask: Any) -> Any:
        inputs = [layout.lay(arrays[name]) for name in case.inputs]
        cotangent = layout.lay(arrays["cotangent"]) if case.backward else None
        return inputs, cotangent, (given(mask),) if given else ()

    def call(loaded: Any) -> Results:
        inputs, cotangent, extra = loaded
        output = function(*inputs, *extra)
        return (output,) if cotangent is None else (output, *gradients(*inputs, cotangent, *extra))

    return Prepared(load, call, lambda result, name: layout.view(result, heads_of(case, name)))


def reference(case: Case, device: str) -> Prepared:
    import reference_numpy as definition

    if case.operation == "layer_norm":
        ready = prepared(
            case,
            device,
            lambda x, weight, bias: definition.layer_norm(x, weight, bias, eps=1e-5),
            gradients=lambda *inputs: definition.layer_norm_vjp(*inputs, eps=1e-5),
        )
    else:
        ready = prepared(
            case,
            device,
            lambda query, key, value, mask: definition.attention(query, key, value, mask=mask),
            lambda mask: mask,
            gradients=lambda *inputs: definition.attention_vjp(*inputs[:-1], mask=inputs[-1])[:3],
        )
    return replace(ready, form="description")


def naive_attention(query: Any, key: Any, value: Any, forbidden: Any) -> np.ndarray:
    """softmax(query . key / sqrt(D)) . value, with all scores in memory."""
    scores = query @ key.swapaxes(-1, -2) * np.float32(1 / math.sqrt(query.shape[-1]))
    if forbidden is not None:
        scores[np.broadcast_to(forbidden, scores.shape)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights @ value)


def naive(case: Case, device: str) -> Prepared:
    ready = prepared(case, device, naive_attention, lambda mask: None if mask is None else ~dense_mask(case, mask))
    return replace(ready, form="" if case.kind == "dense" else "boolean array")


WIDE = without(dtypes=("float32", "float64"))


def subject(name: str, operation: str, make: Callable[..., Prepared], **fields: Any) -> Subject:
    return Subject(name, operation, "numpy", ("numpy",), make, device="cpu", **fields)


SUBJECTS = (
    subject("reference_numpy", "attention", reference, takes=WIDE, ours=True, usual=True),
    subject(
        "NumPy, naive", "attention", naive, scores=(2, 2),
        takes=without(grouped=False, backward=False, dtypes=("float32",)),
    ),
    subject("reference_numpy, layer norm", "layer_norm", reference, takes=WIDE, ours=True, usual=True),
)  # fmt: skip
