"""Cases in a function's own conventions, and its answers in the definition's.

Heads that a function tiles are put in the order in which its query heads read the same key heads as the definition's;
a layout is a transposition; a mask's polarity is that of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case, heads_and_keys
from conformance.cases.features import mask_parts, replace_parts
from specification.masks import Causal, Dense

if TYPE_CHECKING:
    from specification.masks import Mask

Answers = dict[str, np.ndarray]
FEATURES_LAST = ("query", "key", "value")
"""Inputs that a layout rearranges, and their gradients."""


# --- masks ------------------------------------------------------------------------------------------------------------


def map_dense_masks(mask: Mask | None, change: Callable[[Any], Any]) -> Mask | None:
    """The mask with `change` applied to every boolean array in it; what is no mask stays."""
    parts = [Dense(change(part.array)) if isinstance(part, Dense) else part for part in mask_parts(mask)]
    return replace_parts(mask, parts)


def invert_mask(array: np.ndarray) -> Any:
    """True for False; what is no boolean array, and to be refused, stays."""
    array = np.asarray(array)
    return ~array if array.dtype == bool else array


def drop_offset(mask: Mask | None, convention: str, case: Case) -> Mask | None:
    """`Causal()` in place of the offset that the subject's convention gives it."""
    _, _, Q, K = heads_and_keys(case)
    aligned = {"top_left": 0, "bottom_right": K - Q}.get(convention)

    def drop(part: Mask) -> Any:
        bare = isinstance(part, Causal) and isinstance(part.offset, int) and part.offset == aligned
        return Causal() if bare else part

    return replace_parts(mask, [drop(part) for part in mask_parts(mask)])


# --- heads ------------------------------------------------------------------------------------------------------------


def tiled_order(case: Case) -> np.ndarray | None:
    """For every query head of a function that tiles: the definition's head that reads the same key head.

    None where there is no other order, or where heads do not fit.
    """
    if not case.operation.startswith("attention") and case.operation != "multi_head_attention":
        return None
    H, G, _, _ = heads_and_keys(case)
    return np.arange(H).reshape(G, H // G).T.reshape(-1) if 0 < G < H and H % G == 0 else None


def permute_heads(case: Case, order: np.ndarray) -> Case:
    """The case with its query heads in another order."""

    def move_heads(array: np.ndarray) -> Any:
        return permute_head_axis(np.asarray(array), order)

    options = case.options | {"mask": map_dense_masks(case.options.get("mask"), move_heads)}
    if options.get("dropout_keep") is not None:
        options["dropout_keep"] = move_heads(options["dropout_keep"])
    cotangents = {n: move_heads(a) for n, a in case.cotangents.items()} if has_heads(case) else case.cotangents
    return replace(case, inputs=permute_input_heads(case, case.inputs, order), cotangents=cotangents, options=options)


def permute_input_heads(case: Case, arrays: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    """The case's inputs, or their gradients by the same names, with query heads in another order."""
    permuted = {}
    for name, array in arrays.items():
        projection, _, field = name.partition(".")
        if name == "sinks":
            permuted[name] = np.take(array, order) if array.shape == order.shape else array
        elif name == "alibi_slopes":
            permuted[name] = np.take(array, order, axis=-1)
        elif name == "bias" or (name == "query" and has_heads(case)):
            permuted[name] = permute_head_axis(array, order)
        elif projection.startswith("query[") and field:
            permuted[name] = arrays.get(f"query[{order[int(projection[6:-1])]}].{field}", array)
        elif name in ("query.weight", "query.bias"):
            permuted[name] = permute_blocks(array, order, -1)
        elif name == "output.weight":
            permuted[name] = permute_blocks(array, order, 0)
        else:
            permuted[name] = array
    return permuted


def permute_answer_heads(case: Case, answers: Answers, order: np.ndarray) -> Answers:
    """The results and gradients of a case with query heads in another order."""
    gradients = {n: answers[gradient_name(n)] for n in case.inputs if gradient_name(n) in answers}
    moved = {gradient_name(n): a for n, a in permute_input_heads(case, gradients, order).items()}
    results = {n: a for n, a in answers.items() if n not in moved}
    return ({n: permute_head_axis(a, order) for n, a in results.items()} if has_heads(case) else results) | moved


def has_heads(case: Case) -> bool:
    """Whether queries and results have an axis of heads; multi-head attention has them in its projections."""
    return case.operation != "multi_head_attention"


def permute_head_axis(array: np.ndarray, order: np.ndarray) -> np.ndarray:
    """[B or 1, H or 1, ...] in another order of heads; any other shape as it is."""
    fits = array.ndim in (3, 4) and array.shape[1] == len(order)
    return np.take(array, order, axis=1) if fits else array


def permute_blocks(array: np.ndarray, order: np.ndarray, axis: int) -> np.ndarray:
    """The axis as one block for every head."""
    if array.ndim == 0 or array.shape[axis] % len(order):
        return array
    blocks = np.split(array, len(order), axis)
    return np.concatenate([blocks[head] for head in order], axis)


# --- layout -----------------------------------------------------------------------------------------------------------


def swap_axes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(array, 1, 2)) if array.ndim == 4 else array


def swap_answers(case: Case, answers: Answers) -> Answers:
    """The results and gradients of attention as `swap_layout` has them."""
    return {n: swap_axes(a) if has_layout(case, n) else a for n, a in answers.items()}


def has_layout(case: Case, name: str) -> bool:
    """Whether a result or gradient of attention is one that a layout rearranges."""
    return name in map(gradient_name, FEATURES_LAST) or (name == "output" and case.operation == "attention")


def swap_layout(case: Case) -> Case:
    """[B, H, T, D] to [B, T, H, D] and back; nothing but attention has such a layout."""
    if not case.operation.startswith("attention"):
        return case
    inputs = {n: swap_axes(a) if n in FEATURES_LAST else a for n, a in case.inputs.items()}
    cotangents = {n: swap_axes(a) if case.operation == "attention" else a for n, a in case.cotangents.items()}
    return replace(case, inputs=inputs, cotangents=cotangents)
