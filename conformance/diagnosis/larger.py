"""Larger cases like one that fails, to tell mistakes apart that look alike on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.diagnosis.attention import power_of_two
from specification import Dense

MULTIPLICATIONS = 2**21


def larger_cases(case: Case) -> Iterator[Case]:
    """With more keys, of which every block size leaves another rest; with more queries."""
    if case.operation != "attention" or not case.inputs["value"].size:
        return
    Q, K = case.inputs["query"].shape[2], case.inputs["key"].shape[2]
    for queries, keys in ((Q, 4 * power_of_two(K) - 1), (4 * power_of_two(Q) - 1, K)):
        B, H, _, D = case.inputs["query"].shape
        if B * H * queries * keys * (D + case.inputs["value"].shape[-1]) <= MULTIPLICATIONS:
            larger = with_lengths(case, queries, keys)
            if larger is not None:
                yield larger


def with_lengths(case: Case, queries: int, keys: int) -> Case | None:
    """The same call on other numbers; None where its mask cannot be drawn anew."""
    rng = np.random.default_rng(0)
    mask = case.options.get("mask")
    dense = mask is None or isinstance(mask, np.ndarray | Dense)
    if not dense:
        return None

    def numbers(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(size=shape).astype(array.dtype)

    def pairs(array: np.ndarray) -> tuple[int, ...]:
        return (*array.shape[:-2], queries, keys)

    inputs, options = dict(case.inputs), dict(case.options)
    for name in ("query", "key", "value"):
        B, H, _, W = inputs[name].shape
        inputs[name] = numbers(inputs[name], (B, H, queries if name == "query" else keys, W))
    if "bias" in inputs:
        inputs["bias"] = numbers(inputs["bias"], pairs(inputs["bias"]))
    for name in ("mask", "dropout_keep"):
        if options.get(name) is not None:
            options[name] = drawn(options[name], pairs, rng)
    B, H = inputs["query"].shape[:2]
    cotangents = {n: numbers(a, (B, H, queries, a.shape[-1])) for n, a in case.cotangents.items()}
    return replace(case, inputs=inputs, options=options, cotangents=cotangents)


def drawn(mask: Any, pairs: Any, rng: np.random.Generator) -> Any:
    """Half of the pairs, and the first key of every row."""
    array = np.asarray(mask.array if isinstance(mask, Dense) else mask)
    new = rng.random(pairs(array)) < 0.5
    new[..., 0] = True
    return Dense(new) if isinstance(mask, Dense) else new
