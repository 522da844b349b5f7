"""Multi-head attention as modules take it: fused projections, and sizes that the module has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import Case
from specification import And, Linear, Or

if TYPE_CHECKING:
    from specification.masks import Mask

OPERATION = "multi_head_attention"


def join_heads(projection: Linear | list[Linear], concatenate: Callable[..., Any]) -> Linear:
    """Per-head projections side by side, as the fused one that they mean; `concatenate` is the framework's."""
    if isinstance(projection, Linear):
        return projection
    weight = concatenate([head.weight for head in projection], -1)
    biases = [head.bias for head in projection]
    return Linear(weight, None if biases[0] is None else concatenate(biases, -1))


def resize_case(case: Case, width: int | None = None, *, one_bias: bool = True) -> Case:
    """The call with tokens and results of this width, unless None: columns and rows are repeated, or cut off.

    one_bias: projections all have a bias, or none has.
    """
    if case.operation != OPERATION:
        return case
    inputs = case.inputs if width is None else {n: fit_array(a, shape_of(n, a, width)) for n, a in case.inputs.items()}
    weights = [name for name in inputs if name.endswith(".weight")]
    if one_bias and not all(name.replace(".weight", ".bias") in inputs for name in weights):
        inputs = {name: array for name, array in inputs.items() if not name.endswith(".bias")}
    cotangents = {n: a if width is None else fit_array(a, (*a.shape[:-1], width)) for n, a in case.cotangents.items()}
    return replace(case, inputs=inputs, cotangents=cotangents)


def shape_of(name: str, array: np.ndarray, width: int) -> tuple[int, ...]:
    """Of an input, where all tokens have that width."""
    if name in ("query", "key", "value") or name.startswith("output"):
        return (*array.shape[:-1], width)
    return (width, array.shape[1]) if name.endswith(".weight") else array.shape


def inner_width(case: Case) -> int:
    """Of the heads' outputs side by side."""
    return int(case.inputs["output.weight"].shape[0])


def square(case: Case) -> Case:
    """The call in a module's one width, that of its heads side by side."""
    return resize_case(case, inner_width(case)) if case.operation == OPERATION else case


def make_self_attention(case: Case) -> Case:
    """The same with the query's tokens for keys and values too, and with a bias on every projection."""
    if case.operation != OPERATION:
        return case
    inputs = resize_case(case, inner_width(case), one_bias=False).inputs
    tokens = dict.fromkeys(("query", "key", "value"), inputs["query"])
    weights = {name: array for name, array in inputs.items() if name.endswith(".weight")}
    biases = {name.replace(".weight", ".bias"): array[0] for name, array in weights.items()}
    return replace(square(case), inputs=tokens | weights | biases)


def fit_array(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Of this shape, by repeating columns and rows or cutting them off."""
    for axis, length in enumerate(shape):
        if array.shape[axis] != length:
            array = np.take(array, np.arange(length) % max(array.shape[axis], 1), axis=axis)
    return array


def one_mask_for_all_heads(case: Case) -> bool:
    """Calls whose mask, if any, is the same for every head."""
    return shares_mask(case.options.get("mask"))


def shares_mask(mask: Mask | np.ndarray | None) -> bool:
    if isinstance(mask, And | Or):
        return shares_mask(mask.left) and shares_mask(mask.right)
    array = getattr(mask, "array", mask)
    return not isinstance(array, np.ndarray) or array.ndim == 2 or array.shape[1] == 1
