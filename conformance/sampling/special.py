"""Strategies that draw cases with NaN, infinity, empty rows and extreme logits (Hypothesis)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.arguments import padded_queries as rows_past
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration, Sizes, roundings
from conformance.cases.expectations import Planted, allowed_pairs
from conformance.sampling.strategies import (
    ALIKE,
    DTYPES,
    Draw,
    attention_cases,
    broadcast_mask,
    draw_mask,
    empty_row_convention,
    judged_dtypes,
    merge_cases,
    seeds,
    select_cotangents,
    sizes,
)
from specification import Causal, Dense


@st.composite
def planted_cases(
    draw: st.DrawFn,
    where: str,
    declaration: Declaration = EVERYTHING,
    names: tuple[str, ...] = ("query", "key", "value"),
    focus: tuple[str, ...] = (),
    poisons: tuple[float, ...] = (np.nan, np.inf, -np.inf),
    plans: tuple[Sizes, ...] | None = None,
) -> Planted:
    """where: "hidden" plants behind the mask only, "attended" in one place that somebody attends to.

    names: in which of the inputs. poisons: what is planted. focus: features that every case has, if the subject has
    them. plans: the sizes to draw from, instead of the usual ones.
    """
    # Without promises about what is hidden, an attended NaN must be nowhere hidden either.
    strict = declaration.convention("isolation") == "strict"
    assume(where != "hidden" or (strict and can_hide_keys(declaration)))  # before a case is drawn: no seed gives one
    mask, focus = "any" if strict else "none", tuple(sorted({*focus} & declaration.features))
    clean = draw(attention_cases(mask=mask, focus=focus, plans=plans, declaration=declaration))
    assume_read_rows(clean, declaration)
    assume(strict or allowed_pairs(clean).all())  # a bias of -inf hides too
    d = Draw(draw(seeds), clean.dtype)
    allowed, arrays = allowed_pairs(clean), dict(clean.inputs)
    B, H, _, K = allowed.shape
    G = arrays["key"].shape[1]
    seen = allowed.reshape(B, G, H // G, -1, K).any(axis=(2, 3))  # keys that some query of the group attends to
    name = draw(st.sampled_from(names))
    # An attended infinity in a query or key is an infinite score, with a softmax of its own; only NaN is told from it.
    poison = draw(st.sampled_from(poisons if where == "hidden" or name == "value" else (np.nan,)))
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
    elif where == "hidden":
        assume(any(mark.any() for mark in marks.values()))  # where nothing is planted, nothing can be found
    dirty = replace(clean, inputs=arrays | planted, special=True)
    return Planted(clean, dirty, allowed, marks, bool(np.isinf(poison)))


EXCLUDING = {"lengths", "padding", "segments", "dense", "bias", "query_lengths", "offset", "cross"}
"""Features by which a key may be hidden from all queries, or a query may see no key."""


def can_hide_keys(declaration: Declaration) -> bool:
    """Whether a case can hide a key from all queries, or all keys from a query.

    With as many queries as keys, a causal mask or a window at offset 0 lets every query see its own key.
    """
    return not EXCLUDING.isdisjoint(declaration.features)


def assume_read_rows(case: Case, declaration: Declaration) -> None:
    """The subject's own kind of empty row does not read what is hidden."""
    assume(declaration.convention("empty_rows") == "zero" or allowed_pairs(case).any(-1).all())


@st.composite
def padded_queries(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """(with NaN in what follows a sequence's queries, the clean case)."""
    assume(declaration.convention("isolation") == "strict")
    clean = draw(attention_cases(focus=("query_lengths",), others=False, declaration=declaration))
    assume_read_rows(clean, declaration)
    query = np.where(
        rows_past(clean)[:, None, :, None], clean.inputs["query"].dtype.type(np.nan), clean.inputs["query"]
    )
    return replace(clean, inputs=clean.inputs | {"query": query}, special=True), clean


@st.composite
def hidden_cases(draw: st.DrawFn, operation: str, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """(with NaN or infinity behind the mask, the clean case) for the weights, the log-sum-exp (also beside the output),
    and merging.

    In a merge, what is hidden is the output of a part that saw no key.
    """
    if operation == "merge_attention":
        clean = draw(merge_cases(declaration=declaration))
    else:
        assume(declaration.convention("isolation") == "strict")
        clean = draw(attention_cases(operation, mask="any", declaration=declaration))
        assume_read_rows(clean, declaration)
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
    focus: tuple[str, ...] = (),
) -> Case:
    """Some rows of every case allow nothing, whatever else the mask does.

    Who takes no dense masks is asked for those rows that a description leaves empty by itself, or a bias of -inf.
    """
    assume(empty_row_convention(operation, declaration) != "any")
    assume("dense" in declaration or "bias" in focus or (declaration.masks and can_hide_keys(declaration)))
    case = draw(attention_cases(operation, mask="maybe", empty_rows=modes, focus=focus, declaration=declaration))
    if declaration.convention("empty_rows") == "nan":
        case = replace(case, cotangents={})
    d = Draw(draw(seeds), case.dtype)
    if "bias" in focus:  # which empties rows of its own
        bias = case.inputs["bias"]
        bias[d.booleans(*bias.shape[:-1], share=0.3)] = -np.inf
    if "dense" not in declaration:
        assume(not allowed_pairs(case).any(-1).all())
        return case
    allowed = allowed_pairs(replace(case, inputs={n: a for n, a in case.inputs.items() if n != "bias"}))
    rows = d.booleans(*allowed.shape[:3], share=0.6)
    rows.reshape(-1)[draw(st.integers(0, rows.size - 1))] = False
    return replace(case, options=case.options | {"mask": Dense(allowed & rows[..., None])})


# --- what probes make of cases, or choose among them ------------------------------------------------------------------


def zero_scale(case: Case) -> Case:
    """The same with a scale of 0, which is not the same as none."""
    return replace(case, options=case.options | {"scale": 0.0})


def negate_scale(case: Case) -> Case:
    """The same with a scale below 0."""
    return replace(case, options=case.options | {"scale": -abs(case.options["scale"]) or -0.5})


def has_head_masks(case: Case) -> bool:
    """Whether each query head has a mask of its own."""
    mask = case.options["mask"]
    shape = np.shape(mask.array if isinstance(mask, Dense) else mask)
    return len(shape) == 4 and shape[1] > 1


def has_forbidding_bias(case: Case) -> bool:
    """Whether the bias forbids a pair, by -inf."""
    return bool(np.isneginf(case.inputs["bias"].astype(float)).any())


def has_narrow_window(case: Case) -> bool:
    """Whether the window forbids something, and is no causal mask of the same offset by another name."""
    causal = replace(case, options=case.options | {"mask": Causal(case.options["mask"].offset)})
    allowed = allowed_pairs(case)
    return not allowed.all() and not np.array_equal(allowed, allowed_pairs(causal))


# --- extreme logits ---------------------------------------------------------------------------------------------------


@st.composite
def sunken_cases(draw: st.DrawFn, level: float, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """Every allowed score is the same number, far below any finite filling; and the same case with that number 0.

    With equal scores the shifted ones are exactly 0, so both cases have the same result to the last bit, unless a
    forbidden pair takes part with a score of its own (ATT-4). Forbidden scores are as low, or 0, far above the others.
    """
    assume({"scale", "bias"} <= declaration.features)
    dtype = draw(st.sampled_from(judged_dtypes(("float16", "bfloat16", "float32"), declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.normal(s.B, s.H, s.Q, s.D),
        "key": d.normal(s.B, s.G, s.K, s.D),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = select_cotangents({"output": d.normal(s.B, s.H, s.Q, s.V)}, declaration)
    options: dict[str, Any] = {"scale": 0.0, "mask": draw_mask(draw, "any", s, d, declaration)}
    bias = {depth: np.full((s.Q, s.K), depth, np.float32) for depth in (0.0, level)}
    if draw(st.sampled_from((True, False))):
        visible = broadcast_mask(options["mask"], s)
        bias = {depth: np.where(visible, np.float32(depth), np.float32(0)) for depth in bias}
    rounding = roundings(declaration, dtype)
    flat = Case("attention", dtype, inputs | {"bias": bias[0.0]}, options, cotangents, rounding=rounding)
    assume_read_rows(flat, declaration)
    return replace(flat, inputs=inputs | {"bias": bias[level]}), flat


@st.composite
def deep_cases(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """Every product of query and key is the same number far below zero; and the same case with products of 0.

    What `sunken_cases` does by a bias, for subjects that take none. The key's gradient alone is another one with
    products of 0.
    """
    dtype = draw(st.sampled_from(judged_dtypes(("float16", "bfloat16", "float32"), declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    rounding = roundings(declaration, dtype)
    narrow = "float16" in (dtype, rounding.get("products"))
    # Powers of two, one or two of them to a product: sums are exact in any order, and times any constant they round
    # once, so that a fused exp2(s * c - max * c) is 0 for equal scores. The largest are below fillings of -1e9, those
    # of narrow dtypes as long as the scale is 1/2 or more.
    level = draw(st.sampled_from((2.0**15, 2.0**10) if narrow else (2.0**40, 2.0**20)))
    query, key = d.normal(s.B, s.H, s.Q, s.D, scale=0), d.normal(s.B, s.G, s.K, s.D, scale=0)
    deep = slice(2 if narrow else 1)
    query[..., deep], key[..., deep] = -level, level
    inputs = {"query": query, "key": key, "value": d.normal(s.B, s.G, s.K, s.V)}
    options = {"mask": draw_mask(draw, "any", s, d, declaration)}
    if "scale" in declaration:  # a rounded one would leave no power of two for a constant that comes after it
        options["scale"] = 1.0
    cotangents = select_cotangents({"output": d.normal(s.B, s.H, s.Q, s.V)}, declaration)
    constants = ("key",) if cotangents else ()
    case = Case("attention", dtype, inputs, options, cotangents, rounding=rounding, constants=constants)
    assume_read_rows(case, declaration)
    return case, replace(case, inputs=inputs | {"query": np.zeros_like(query)})


@st.composite
def towering_cases(
    draw: st.DrawFn, scales: tuple[float, ...], declaration: Declaration = EVERYTHING
) -> tuple[Case, Case]:
    """Small whole numbers times an enormous scale; the same softmax as a mean over each row's largest.

    The products are exact in every dtype and the gaps between different scores are enormous, so the weights are
    exactly equal for the keys that share the row's maximum and 0 for the rest (ATT-10).
    """
    assume("scale" in declaration)
    dtype = draw(st.sampled_from(judged_dtypes(DTYPES, declaration)))
    s, d = draw(sizes(dtype, declaration)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.integers(-2, 2, s.B, s.H, s.Q, s.D).astype(d.normal(1).dtype),
        "key": d.integers(-2, 2, s.B, s.G, s.K, s.D).astype(d.normal(1).dtype),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = select_cotangents({"output": d.normal(s.B, s.H, s.Q, s.V)}, declaration)
    options: dict[str, Any] = {"scale": draw(st.sampled_from(scales))}
    options["mask"] = draw_mask(draw, "maybe", s, d, declaration)
    case = Case("attention", dtype, inputs, options, cotangents, rounding=roundings(declaration, dtype))
    assume_read_rows(case, declaration)
    return case, replace(case, options={"scale": 0.0, "mask": Dense(largest(case, s))})


def largest(case: Case, s: Sizes) -> Any:
    key = np.repeat(case.inputs["key"].astype(float), s.H // s.G, axis=1)
    products = np.sign(case.options["scale"]) * case.inputs["query"].astype(float) @ key.swapaxes(-1, -2)
    scores = np.where(allowed_pairs(case), products, -np.inf)
    return (scores == scores.max(axis=-1, keepdims=True)) & np.isfinite(scores)


# --- masks and splits -------------------------------------------------------------------------------------------------


@st.composite
def absent_sinks(
    draw: st.DrawFn, operation: str = "attention", declaration: Declaration = EVERYTHING
) -> tuple[Case, Case]:
    """Sinks of -inf; and the same case without sinks, which they do not change (ATT-5)."""
    assume("sinks" in declaration)
    plain = declaration.remove_features("sinks")
    if draw(st.sampled_from((True, True, False))):  # rows that are left with nothing at all
        clean = draw(empty_row_cases(operation, declaration=plain))
    else:
        clean = draw(attention_cases(operation, mask="maybe", others=False, declaration=plain))
    assume_read_rows(clean, declaration)
    query = clean.inputs["query"]
    sinks = np.full(query.shape[1], -np.inf, query.dtype)
    return replace(clean, inputs=clean.inputs | {"sinks": sinks}, special=True), clean


@st.composite
def infinite_scores(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, Case]:
    """A key whose every score is -inf; and the same case with that key forbidden (ATT-10).

    A row that sees nothing else comes out as one that allows nothing.
    """
    assume("dense" in declaration)
    clean = draw(attention_cases(mask="maybe", others=False, gradients=False, declaration=declaration))
    allowed, inputs = np.array(allowed_pairs(clean)), dict(clean.inputs)
    inputs["query"], key = -np.abs(inputs["query"]) - 1, np.array(inputs["key"])
    place = draw(st.integers(0, key.shape[2] - 1))
    key[:, :, place, 0] = np.inf
    allowed[..., place] = False
    clean = replace(clean, inputs=inputs, options=clean.options | {"mask": Dense(allowed)})
    assume_read_rows(clean, declaration)
    seen = allowed.copy()
    seen[..., place] = True
    dirty = replace(clean, inputs=inputs | {"key": key}, options=clean.options | {"mask": Dense(seen)}, special=True)
    return dirty, clean


@st.composite
def far_cases(
    draw: st.DrawFn, operation: str, focus: tuple[str, ...] = (), declaration: Declaration = EVERYTHING
) -> Case:
    """Scores that all lie some 300 above or below 0, or sinks that do: beyond the range of exponentials in float32."""
    dtypes = ("float32", "bfloat16", "float16")
    case = draw(attention_cases(operation, focus=focus, others=False, dtypes=dtypes, declaration=declaration))
    d, level = Draw(draw(seeds), case.dtype), draw(st.sampled_from((300.0, -300.0)))
    inputs = dict(case.inputs)
    if "sinks" in inputs:
        signs = np.where(d.booleans(*inputs["sinks"].shape, share=0.5), 1, -1)
        inputs["sinks"] = (inputs["sinks"].astype(float) + level * signs).astype(inputs["sinks"].dtype)
    else:
        query, key = inputs["query"].copy(), inputs["key"].copy()
        size = np.sqrt(abs(level)) * query.shape[-1] ** 0.25
        query[..., 0], key[..., 0] = size, np.sign(level) * size
        inputs |= {"query": query, "key": key}
    return replace(case, inputs=inputs)


@st.composite
def narrow_masks(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> Case:
    """A mask [B, 1, Q, K] or [1, H, Q, K], where B = H."""
    assume("dense" in declaration)
    case = draw(attention_cases(mask="none", others=False, plans=ALIKE, declaration=declaration))
    d, (B, H, Q, _), K = Draw(draw(seeds), case.dtype), case.inputs["query"].shape, case.inputs["key"].shape[2]
    shape = draw(st.sampled_from(((B, 1, Q, K), (1, H, Q, K))))
    case = replace(case, options=case.options | {"mask": Dense(d.booleans(*shape))})
    assume_read_rows(case, declaration)
    return case


@st.composite
def flat_masks(draw: st.DrawFn, plans: tuple[Sizes, ...] | None = None, declaration: Declaration = EVERYTHING) -> Case:
    """A mask [Q, K]."""
    assume("dense" in declaration)
    case = draw(attention_cases(mask="none", plans=plans, declaration=declaration))
    d = Draw(draw(seeds), case.dtype)
    shape = (case.inputs["query"].shape[2], case.inputs["key"].shape[2])
    case = replace(case, options=case.options | {"mask": Dense(d.booleans(*shape))})
    assume_read_rows(case, declaration)
    return case


@st.composite
def splits(draw: st.DrawFn, declaration: Declaration = EVERYTHING) -> tuple[Case, tuple[int, ...]]:
    """A case of attention, and where its keys are cut into parts."""
    dtypes = ("float32", "float64")
    case = draw(attention_cases(others=False, gradients=False, dtypes=dtypes, declaration=declaration))
    case = replace(case, options=case.options | {"mask": Dense(np.array(allowed_pairs(case)))})
    keys = case.inputs["key"].shape[2]
    return case, tuple(sorted(draw(st.lists(st.integers(0, keys), min_size=1, max_size=3))))
