"""Making a failing case of attention smaller than Hypothesis can: it draws from few sizes, this cuts at any.

A case is cut to its first batch elements, heads, queries, keys and features, and loses options, as long as it fails.
So is one with planted special values, next to its clean twin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.declaration import Declaration
from conformance.expectations import Planted, allowed_pairs
from conformance.features import within
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or

OPERATIONS = ("attention", "attention_weights", "attention_logsumexp")
AXES = ("B", "G", "S", "Q", "K", "D", "V")
"""Batch, key heads, query heads to a key head, queries, keys, width of query and key, width of value."""

Sizes = dict[str, int]


Material = Case | Planted


def reduced(
    material: Material,
    declaration: Declaration,
    fails: Callable[[Material], bool],
    seconds: float,
    masked: bool = False,
) -> Material:
    """The smallest failing one found in the time; itself if it cannot be cut. masked: its mask must stay."""
    end, smaller = time.monotonic() + seconds, True
    while smaller and call(material).operation in OPERATIONS:
        smaller = False
        for candidate in simpler(material):
            if time.monotonic() > end:
                return material
            bare = masked and call(candidate).options.get("mask") is None
            if not bare and within(call(candidate), declaration) and fails(candidate):
                material, smaller = candidate, True
                break
    return material


def call(material: Material) -> Case:
    return material.planted if isinstance(material, Planted) else material


def simpler(material: Material) -> Iterator[Material]:
    """Of a planted case, both sides cut alike, as long as anything planted is left."""
    if isinstance(material, Case):
        yield from candidates(material)
        return
    for clean, planted in zip(candidates(material.clean), candidates(material.planted), strict=True):
        marks = {name: planted.inputs[name] != clean.inputs[name] for name in material.marks}
        if any(mark.any() for mark in marks.values()):
            yield Planted(clean, planted, allowed_pairs(clean), marks, material.infinite)


def candidates(case: Case) -> Iterator[Case]:
    """Simpler cases: first without an option, then with an axis cut to 1, to half, by one."""
    for name in ("bias", "sinks"):
        if name in case.inputs:
            yield replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})
    for name in ("mask", "softcap", "scale"):
        if case.options.get(name) is not None:
            yield replace(case, options={n: o for n, o in case.options.items() if n != name})
    if case.cotangents:
        yield replace(case, cotangents={})
    sizes = sizes_of(case)
    for axis in AXES:
        for size in dict.fromkeys((1, sizes[axis] // 2, sizes[axis] - 1)):
            if 0 < size < sizes[axis]:
                yield cut(case, sizes | {axis: size})


def sizes_of(case: Case) -> Sizes:
    (B, H, Q, D), (_, G, K, _) = case.inputs["query"].shape, case.inputs["key"].shape
    V = case.inputs["value"].shape[-1] if "value" in case.inputs else 1
    return {"B": B, "G": G, "S": H // max(G, 1), "Q": Q, "K": K, "D": D, "V": V}


def cut(case: Case, to: Sizes) -> Case:
    """The first of everything; query heads stay with their key heads."""
    B, Q, K, D, V = (to[axis] for axis in ("B", "Q", "K", "D", "V"))
    share = sizes_of(case)["S"]
    heads = [group * share + member for group in range(to["G"]) for member in range(to["S"])]

    def pairs(array: np.ndarray) -> np.ndarray:
        """[Q, K] or [B or 1, H or 1, Q, K]."""
        array = array[..., :Q, :K]
        if array.ndim == 2:
            return array
        return np.take(array[:B], heads, axis=1) if array.shape[1] > 1 else array[:B]

    inputs = dict(case.inputs)
    inputs["query"] = np.take(case.inputs["query"], heads, axis=1)[:B, :, :Q, :D]
    inputs["key"] = case.inputs["key"][:B, : to["G"], :K, :D]
    if "value" in inputs:
        inputs["value"] = inputs["value"][:B, : to["G"], :K, :V]
    if "bias" in inputs:
        inputs["bias"] = pairs(inputs["bias"])
    if "sinks" in inputs:
        inputs["sinks"] = np.take(inputs["sinks"], heads)
    options = dict(case.options)
    if options.get("mask") is not None:
        options["mask"] = cut_mask(options["mask"], B, Q, K, pairs)
    if options.get("dropout_keep") is not None:
        options["dropout_keep"] = pairs(options["dropout_keep"])
    last = {"attention": (Q, V), "attention_weights": (Q, K), "attention_logsumexp": (Q,)}[case.operation]
    index = (slice(B), slice(None), *map(slice, last))
    cotangents = {name: np.take(array, heads, axis=1)[index] for name, array in case.cotangents.items()}
    return replace(case, inputs=contiguous(inputs), options=options, cotangents=contiguous(cotangents))


def contiguous(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def cut_mask(mask: Any, B: int, Q: int, K: int, pairs: Callable[[np.ndarray], np.ndarray]) -> Any:
    """What the mask says of the first batch elements, queries and keys."""
    if isinstance(mask, And | Or):
        return type(mask)(*(cut_mask(side, B, Q, K, pairs) for side in (mask.left, mask.right)))
    if isinstance(mask, Causal):
        return Causal(offset(mask.offset, B))
    if isinstance(mask, SlidingWindow):
        return SlidingWindow(mask.left, mask.right, offset(mask.offset, B))
    if isinstance(mask, KeyLengths):
        return KeyLengths(np.minimum(np.asarray(mask.lengths)[:B], K))
    if isinstance(mask, KeyPadding):
        return KeyPadding(np.asarray(mask.keep)[:B, :K])
    if isinstance(mask, Segments):
        return Segments(np.asarray(mask.query_ids)[:B, :Q], np.asarray(mask.key_ids)[:B, :K])
    array = pairs(np.asarray(mask.array if isinstance(mask, Dense) else mask))
    return Dense(array) if isinstance(mask, Dense) else array


def offset(given: Any, B: int) -> Any:
    """Left out means 0, which must be said once Q and K differ."""
    if given is None:
        return 0
    return given if isinstance(given, int) else np.asarray(given)[:B]
