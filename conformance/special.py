"""Strategies that draw cases with NaN, infinity, empty rows and extreme logits (Hypothesis)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.declaration import EVERYTHING, Declaration
from conformance.expectations import Planted, allowed_pairs
from conformance.generation import (
    DTYPES,
    Draw,
    Sizes,
    attention_cases,
    draw_mask,
    judged,
    merge_cases,
    norm_cases,
    seeds,
    sizes,
    wanted,
)
from specification import Dense


@st.composite
def planted_cases(draw: st.DrawFn, where: str, declaration: Declaration = EVERYTHING) -> Planted:
    """where: "hidden" plants behind the mask only, "attended" in one place that somebody attends to."""
    clean = draw(attention_cases(mask="any", others=True, declaration=declaration))
    isolated(clean, declaration, where == "hidden")
    d = Draw(draw(seeds), clean.dtype)
    allowed, arrays = allowed_pairs(clean), dict(clean.inputs)
    B, H, _, K = allowed.shape
    G = arrays["key"].shape[1]
    seen = allowed.reshape(B, G, H // G, -1, K).any(axis=(2, 3))  # keys that some query of the group attends to
    name = draw(st.sampled_from(("query", "key", "value")))
    # An attended infinity in a query or key is an infinite score, with a softmax of its own; only NaN is told from it.
    poisons = (np.nan, np.inf, -np.inf) if where == "hidden" or name == "value" else (np.nan,)
    poison = draw(st.sampled_from(poisons))
    marks = {name: np.zeros(arrays[name].shape, bool) for name in ("query", "key", "value")}
    if where == "hidden":
        for hidden in {"query": ("key", "value"), "key": ("key",), "value": ("value",)}[name]:
            marks[hidden] |= ~seen[..., None] & d.booleans(B, G, K, 1, share=0.7)
    else:
        live = np.argwhere(allowed.any(-1) if name == "query" else seen)  # rows and keys that take part
        if len(live):
            marks[name][(*draw(st.sampled_from(live.tolist())), draw(st.integers(0, arrays[name].shape[-1] - 1)))] = (
                True
            )
    if where == "hidden" and {"bias", "dense"} <= declaration.features and draw(st.booleans()):
        # What stands behind the mask in the bias must not count either.
        arrays["bias"] = np.where(allowed, 0, poison).astype(clean.dtype)
    planted = {name: np.where(mark, arrays[name].dtype.type(poison), arrays[name]) for name, mark in marks.items()}
    clean_inputs = dict(clean.inputs)
    if "bias" in arrays and arrays["bias"] is not clean.inputs.get("bias"):
        clean_inputs["bias"] = np.zeros_like(arrays["bias"])
        clean = replace(clean, inputs=clean_inputs, options=clean.options | {"mask": Dense(allowed)})
    dirty = replace(clean, inputs=arrays | planted, special=True)
    return Planted(clean, dirty, allowed, marks, bool(np.isinf(poison)))


def isolated(case: Case, declaration: Declaration, hidden: bool = True) -> None:
    """The subject promises something about what is hidden, and its own kind of empty row does not read it."""
    assume(not hidden or declaration.convention("isolation") == "strict")
    assume(declaration.convention("empty_rows") == "zero" or allowed_pairs(case).any(-1).all())


@st.composite
def hidden_cases(draw: st.DrawFn, operation: str, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """(with NaN or infinity behind the mask, the clean case) for the weights, the log-sum-exp, and merging.

    In a merge, what is hidden is the output of a part that saw no key.
    """
    if operation == "merge_attention":
        clean = draw(merge_cases(declaration=declaration))
    else:
        clean = draw(attention_cases(operation, mask="any", declaration=declaration))
        isolated(clean, declaration)
    d, poison = Draw(draw(seeds), clean.dtype), draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    inputs = dict(clean.inputs)
    if operation == "merge_attention":
        for name in [name for name in inputs if name.startswith("outputs")]:
            unseen = inputs[name.replace("outputs", "logsumexps")] == -np.inf
            inputs[name] = np.where(unseen[..., None], inputs[name].dtype.type(poison), inputs[name])
    else:
        allowed, key = allowed_pairs(clean), inputs["key"]
        seen = allowed.reshape(*key.shape[:2], -1, *allowed.shape[2:]).any(axis=(2, 3))
        hidden = ~seen[..., None] & d.booleans(*key.shape, share=0.7)
        inputs["key"] = np.where(hidden, key.dtype.type(poison), key)
    return replace(clean, inputs=inputs, special=True), clean


# --- rows that allow nothing ------------------------------------------------------------------------------------------


@st.composite
def empty_row_cases(
    draw: st.DrawFn,
    operation: str = "attention",
    modes: tuple[str, ...] = ("zero",),
    declaration: Declaration = EVERYTHING,
) -> Case:
    """Some rows of every case allow nothing, whatever else the mask does."""
    assume("dense" in declaration)
    assume(declaration.convention("empty_rows") != "any")
    case = draw(attention_cases(operation, mask="maybe", empty_rows=modes, declaration=declaration))
    if declaration.convention("empty_rows") == "nan":
        case = replace(case, cotangents={})
    d = Draw(draw(seeds), case.dtype)
    allowed = allowed_pairs(replace(case, inputs={n: a for n, a in case.inputs.items() if n != "bias"}))
    rows = d.booleans(*allowed.shape[:3], share=0.6)
    rows.reshape(-1)[draw(st.integers(0, rows.size - 1))] = False
    return replace(case, options=case.options | {"mask": Dense(allowed & rows[..., None])})


# --- extreme logits ---------------------------------------------------------------------------------------------------


@st.composite
def sunken_cases(draw: st.DrawFn, level: float, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """Every allowed score is the same number, far below any finite filling; and the same case with that number 0.

    With equal scores the shifted ones are exactly 0, so both cases have the same result to the last bit, unless a
    forbidden pair takes part with a score of its own (ATT-4).
    """
    assume({"scale", "bias"} <= declaration.features)
    dtype = draw(st.sampled_from(judged(("float16", "bfloat16", "float32"), declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.normal(s.B, s.H, s.Q, s.D),
        "key": d.normal(s.B, s.G, s.K, s.D),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = wanted({"output": d.normal(s.B, s.H, s.Q, s.V)}, declaration)
    options: dict[str, Any] = {"scale": 0.0, "mask": draw_mask(draw, "any", s, d, declaration)}
    bias = {depth: np.full((s.Q, s.K), depth, np.float32) for depth in (0.0, level)}
    flat = Case("attention", dtype, inputs | {"bias": bias[0.0]}, options, cotangents)
    isolated(flat, declaration, hidden=False)
    return replace(flat, inputs=inputs | {"bias": bias[level]}), flat


@st.composite
def deep_cases(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """Every product of query and key is the same number far below zero; and the same case with products of 0.

    What `sunken_cases` does by a bias, for subjects that take none.
    """
    dtype = draw(st.sampled_from(judged(("float16", "bfloat16", "float32"), declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    level = draw(st.sampled_from((2.0**10, 2.0**15) if dtype == "float16" else (2.0**10, 2.0**15, 2.0**40)))
    query, key = d.normal(s.B, s.H, s.Q, s.D, scale=0), d.normal(s.B, s.G, s.K, s.D, scale=0)
    query[..., 0], key[..., 0] = -level, level
    inputs = {"query": query, "key": key, "value": d.normal(s.B, s.G, s.K, s.V)}
    deep = Case("attention", dtype, inputs, {"mask": draw_mask(draw, "any", s, d, declaration)})
    isolated(deep, declaration, hidden=False)
    return deep, replace(deep, inputs=inputs | {"query": np.zeros_like(query)})


@st.composite
def towering_cases(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """Small whole numbers times an enormous scale; and the same softmax written as a mean over each row's largest.

    The products are exact in every dtype and the gaps between different scores are enormous, so the weights are
    exactly equal for the keys that share the row's maximum and 0 for the rest (ATT-10).
    """
    assume("scale" in declaration)
    dtype = draw(st.sampled_from(judged(DTYPES, declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.integers(-2, 2, s.B, s.H, s.Q, s.D).astype(d.normal(1).dtype),
        "key": d.integers(-2, 2, s.B, s.G, s.K, s.D).astype(d.normal(1).dtype),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = wanted({"output": d.normal(s.B, s.H, s.Q, s.V)}, declaration)
    case = Case("attention", dtype, inputs, {"scale": draw(st.sampled_from((2.0**14, 2.0**40, 2.0**100)))}, cotangents)
    mask = draw_mask(draw, "maybe", s, d, declaration)
    case = replace(case, options=case.options | {"mask": mask})
    isolated(case, declaration, hidden=False)
    return case, replace(case, options={"scale": 0.0, "mask": Dense(largest(case, s))})


def largest(case: Case, s: Sizes) -> Any:
    key = np.repeat(case.inputs["key"].astype(float), s.H // s.G, axis=1)
    scores = np.where(allowed_pairs(case), case.inputs["query"].astype(float) @ key.swapaxes(-1, -2), -np.inf)
    return (scores == scores.max(axis=-1, keepdims=True)) & np.isfinite(scores)


# --- masks and splits -------------------------------------------------------------------------------------------------


@st.composite
def flat_masks(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> Case:
    """A mask [Q, K]."""
    assume("dense" in declaration)
    case = draw(attention_cases(mask="none", declaration=declaration))
    d = Draw(draw(seeds), case.dtype)
    shape = (case.inputs["query"].shape[2], case.inputs["key"].shape[2])
    case = replace(case, options=case.options | {"mask": Dense(d.booleans(*shape))})
    isolated(case, declaration, hidden=False)
    return case


@st.composite
def splits(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, tuple[int, ...]]:
    """A case of attention, and where its keys are cut into parts."""
    dtypes = ("float32", "float64")
    case = draw(attention_cases(others=False, gradients=False, dtypes=dtypes, declaration=declaration))
    case = replace(case, options=case.options | {"mask": Dense(np.array(allowed_pairs(case)))})
    keys = case.inputs["key"].shape[2]
    return case, tuple(sorted(draw(st.lists(st.integers(0, keys), min_size=1, max_size=3))))


# --- layer norm -------------------------------------------------------------------------------------------------------


@st.composite
def constant_rows(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> Case:
    case = draw(norm_cases(gradients=False, declaration=declaration))
    d = Draw(draw(seeds), case.dtype)
    x = case.inputs["x"]
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    rows = d.normal(*(1 if axis - x.ndim in axes else n for axis, n in enumerate(x.shape)), scale=100.0, mean=300.0)
    return replace(case, inputs=case.inputs | {"x": np.array(np.broadcast_to(rows, x.shape))})


@st.composite
def spoiled_rows(
    draw: st.DrawFn, operation: str, declaration: Declaration = EVERYTHING
) -> tuple[Case, Case, np.ndarray, np.ndarray]:
    """(the case with NaN or infinity somewhere, the clean case, elements that must be non-finite, spoiled rows).

    Infinity in `rms_norm` leaves the others of its row finite: they are divided by it.
    """
    case = draw(norm_cases(operation, gradients=False, declaration=declaration))
    x = np.array(case.inputs["x"])
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    place = tuple(draw(st.integers(0, n - 1)) for n in x.shape)
    x[place] = draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    bad = ~np.isfinite(x.astype(float))
    rows = np.broadcast_to(bad.any(axis=axes, keepdims=True), x.shape)
    reached = bad if operation == "rms_norm" and np.isinf(x[place]) else rows
    return replace(case, inputs=case.inputs | {"x": x}, special=True), case, reached, rows
