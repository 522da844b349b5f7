"""Cases with NaN, infinity, empty rows and extreme logits, and what must come of them.

The expectation is painted onto the truth of the clean case by plain boolean reasoning about who attends to whom, so it
rests neither on the definition's arithmetic with NaN nor on that of anybody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.generation import DTYPES, Draw, Sizes, attention_cases, draw_mask, judged, merge_cases, seeds, sizes
from conformance.oracle import Exact
from conformance.spreading import gradient_name
from reference_numpy import materialize
from specification import Dense


@dataclass(frozen=True)
class Planted:
    """A clean case, the same case with special values planted, and where they stand."""

    clean: Case
    planted: Case
    allowed: np.ndarray  # [B, H, Q, K]
    marks: dict[str, np.ndarray]  # boolean, for "query", "key" and "value"
    infinite: bool = False  # whether infinities are planted, not NaN

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self.planted))


def allowed_pairs(case: Case) -> Any:
    B, H, Q, _ = case.inputs["query"].shape
    K = case.inputs["key"].shape[2]
    allowed = np.broadcast_to(materialize(case.options.get("mask"), Q, K, batch=B, heads=H), (B, H, Q, K))
    if "bias" in case.inputs:
        bias = case.inputs["bias"].astype(float)
        allowed = allowed & (bias != -np.inf)
    return allowed


@st.composite
def planted_cases(draw: st.DrawFn, where: str) -> Planted:
    """where: "hidden" plants behind the mask only, "attended" in one place that somebody attends to."""
    clean = draw(attention_cases(mask="any", others=True))
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
    if where == "hidden" and draw(st.booleans()):
        # What stands behind the mask in the bias must not count either.
        arrays["bias"] = np.where(allowed, 0, poison).astype(clean.dtype)
    planted = {name: np.where(mark, arrays[name].dtype.type(poison), arrays[name]) for name, mark in marks.items()}
    clean_inputs = dict(clean.inputs)
    if "bias" in arrays and arrays["bias"] is not clean.inputs.get("bias"):
        clean_inputs["bias"] = np.zeros_like(arrays["bias"])
        clean = replace(clean, inputs=clean_inputs, options=clean.options | {"mask": Dense(allowed)})
    dirty = replace(clean, inputs=arrays | planted, special=True)
    return Planted(clean, dirty, allowed, marks, bool(np.isinf(poison)))


@st.composite
def hidden_cases(draw: st.DrawFn, operation: str) -> tuple[Case, Case]:
    """(with NaN or infinity behind the mask, the clean case) for the weights, the log-sum-exp, and merging.

    In a merge, what is hidden is the output of a part that saw no key.
    """
    clean = draw(merge_cases() if operation == "merge_attention" else attention_cases(operation, mask="any"))
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


def expectation(p: Planted, truth: dict[str, Exact]) -> dict[str, Exact]:
    """The clean truth with NaN wherever a planted NaN must show (MASK-7, ATT-10), for `attention` and its gradients.

    A NaN in a query or an attended key spoils its row's weights: the row's output, the query's gradient, and the
    gradients of every key and value that the row attends to. A NaN in an attended value spoils one output feature of
    the row, and by way of its weights' gradient those of the query and of the keys attended to, but of no value.
    Dropout hides nothing: a dropped weight is 0, and 0 * NaN is NaN.
    """
    allowed = p.allowed
    B, H = allowed.shape[:2]
    G = p.marks["key"].shape[1]

    def heads(mark: np.ndarray) -> np.ndarray:
        return np.repeat(mark, H // G, axis=1)

    def groups(mark: np.ndarray) -> Any:
        return mark.reshape(B, G, H // G, *mark.shape[2:]).any(axis=2)

    bad_key = heads(p.marks["key"].any(-1))[:, :, None, :]
    rows = (allowed & (bad_key | p.marks["query"].any(-1)[..., None])).any(-1)
    features = (allowed[..., None] & heads(p.marks["value"])[:, :, None]).any(3)
    spoiled = {
        "output": rows[..., None] | features,
        gradient_name("value"): groups((allowed & rows[..., None]).any(2))[..., None],
    }
    rows = rows | features.any(-1)
    pairs = allowed & rows[..., None]
    spoiled |= {
        gradient_name("query"): rows[..., None],
        gradient_name("key"): groups(pairs.any(2))[..., None],
        gradient_name("sinks"): rows.any(axis=(0, 2)),
        gradient_name("bias"): pairs,
    }
    expected = {}
    for name, exact in truth.items():
        bad = spoiled[name]
        if name == gradient_name("bias"):
            shape = exact.high.shape if exact.high.ndim == 4 else (1, 1, *exact.high.shape)
            axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
            bad = bad.any(axis=axes, keepdims=True).reshape(exact.high.shape)
        expected[name] = Exact(np.where(bad, np.nan, exact.high), np.where(bad, 0, exact.low))
    return expected


# --- rows that allow nothing ------------------------------------------------------------------------------------------


@st.composite
def empty_row_cases(draw: st.DrawFn, operation: str = "attention", modes: tuple[str, ...] = ("zero",)) -> Case:
    """Some rows of every case allow nothing, whatever else the mask does."""
    case = draw(attention_cases(operation, mask="maybe", empty_rows=modes))
    d = Draw(draw(seeds), case.dtype)
    allowed = allowed_pairs(replace(case, inputs={n: a for n, a in case.inputs.items() if n != "bias"}))
    rows = d.booleans(*allowed.shape[:3], share=0.6)
    rows.reshape(-1)[draw(st.integers(0, rows.size - 1))] = False
    return replace(case, options=case.options | {"mask": Dense(allowed & rows[..., None])})


def empty_rows(case: Case) -> np.ndarray:
    return ~allowed_pairs(case).any(-1)


@st.composite
def nan_row_cases(draw: st.DrawFn) -> tuple[Case, Case]:
    """A case with empty_rows="nan", and the same one with the definition's own empty rows."""
    operation = draw(st.sampled_from(("attention", "attention_weights")))
    case = draw(empty_row_cases(operation, modes=("nan",)))
    plain = {name: value for name, value in case.options.items() if name != "empty_rows"}
    return replace(case, special=True), replace(case, options=plain)


def nan_rows(case: Case, truth: dict[str, Exact]) -> dict[str, Exact]:
    """NaN in the outputs and weights of empty rows, and in the gradients of all the values that they would weigh."""
    rows = empty_rows(case)
    B = len(rows)
    G = case.inputs["key"].shape[1]
    spoiled = {"output": rows[..., None], gradient_name("value"): rows.reshape(B, G, -1).any(-1)[..., None, None]}
    expected = {}
    for name, exact in truth.items():
        bad = spoiled.get(name, np.zeros((1,) * exact.high.ndim, bool))
        expected[name] = Exact(np.where(bad, np.nan, exact.high), np.where(bad, 0, exact.low))
    return expected


# --- extreme logits ---------------------------------------------------------------------------------------------------


@st.composite
def sunken_cases(draw: st.DrawFn, level: float) -> tuple[Case, Case]:
    """Every allowed score is the same number, far below any finite filling; and the same case with that number 0.

    With equal scores the shifted ones are exactly 0, so both cases have the same result to the last bit, unless a
    forbidden pair takes part with a score of its own (ATT-4).
    """
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    s, d = draw(sizes(dtype)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.normal(s.B, s.H, s.Q, s.D),
        "key": d.normal(s.B, s.G, s.K, s.D),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = {"output": d.normal(s.B, s.H, s.Q, s.V)}
    options: dict[str, Any] = {"scale": 0.0, "mask": draw_mask(draw, "any", s, d)}
    bias = {depth: np.full((s.Q, s.K), depth, np.float32) for depth in (0.0, level)}
    flat = Case("attention", dtype, inputs | {"bias": bias[0.0]}, options, cotangents)
    return replace(flat, inputs=inputs | {"bias": bias[level]}), flat


@st.composite
def towering_cases(draw: st.DrawFn) -> tuple[Case, Case]:
    """Small whole numbers times an enormous scale; and the same softmax written as a mean over each row's largest.

    The products are exact in every dtype and the gaps between different scores are enormous, so the weights are
    exactly equal for the keys that share the row's maximum and 0 for the rest (ATT-10).
    """
    dtype = draw(st.sampled_from(judged(DTYPES)))
    s, d = draw(sizes(dtype)), Draw(draw(seeds), dtype)
    inputs = {
        "query": d.integers(-2, 2, s.B, s.H, s.Q, s.D).astype(d.normal(1).dtype),
        "key": d.integers(-2, 2, s.B, s.G, s.K, s.D).astype(d.normal(1).dtype),
        "value": d.normal(s.B, s.G, s.K, s.V),
    }
    cotangents = {"output": d.normal(s.B, s.H, s.Q, s.V)}
    case = Case("attention", dtype, inputs, {"scale": draw(st.sampled_from((2.0**14, 2.0**40, 2.0**100)))}, cotangents)
    mask = draw_mask(draw, "maybe", s, d)
    case = replace(case, options=case.options | {"mask": mask})
    return case, replace(case, options={"scale": 0.0, "mask": Dense(largest(case, s))})


def largest(case: Case, s: Sizes) -> Any:
    key = np.repeat(case.inputs["key"].astype(float), s.H // s.G, axis=1)
    scores = np.where(allowed_pairs(case), case.inputs["query"].astype(float) @ key.swapaxes(-1, -2), -np.inf)
    return (scores == scores.max(axis=-1, keepdims=True)) & np.isfinite(scores)
