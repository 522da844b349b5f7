"""Probes: for every rule, the cases that test it and what is asked of each answer.

A probe draws material with Hypothesis, prepares what all subjects share (truth and bounds are computed once), and
examines one subject at a time. It returns findings; a finding with a ratio above 1 is a violation of the probe's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import bound, merged_bound
from conformance.cases import Case
from conformance.generation import (
    ACTIVATIONS,
    DTYPES,
    EMPTY,
    MASKS,
    OPERATIONS,
    SHORT,
    Draw,
    attention_cases,
    feed_forward_cases,
    lookup_cases,
    merge_cases,
    multi_head_cases,
    norm_cases,
    seeds,
    sinusoidal_cases,
)
from conformance.oracle import oracle
from conformance.pairs import visible_pairs
from conformance.special import (
    Planted,
    empty_row_cases,
    empty_rows,
    expectation,
    hidden_cases,
    nan_row_cases,
    nan_rows,
    planted_cases,
    sunken_cases,
    towering_cases,
)
from conformance.spreading import arguments, gradient_name
from conformance.subjects import Subject, framework_options, results_by_name
from conformance.verdict import Finding, judge
from specification import Dense

Findings = list[Finding]


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    material: draws what `prepare` and `examine` work on. case_of: the case in it, for statistics and reports.
    weight: its share of the cases, relative to other probes.
    """

    rule: str
    title: str
    material: st.SearchStrategy[Any]
    prepare: Callable[[Any], Any]
    examine: Callable[[Subject, Any, Any], Findings]
    case_of: Callable[[Any], Case] = lambda material: material
    weight: float = 1.0


def first(materials: tuple[Any, ...]) -> Case:
    """The case that the subject is asked, of two or more."""
    return materials[0]


# --- agreement with the oracle ----------------------------------------------------------------------------------------


def truth_and_bounds(case: Case) -> tuple[Any, Any]:
    return oracle(case), bound(case)


def examine_agreement(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    return judge(case, subject(case), *shared)


def agreement(rule: str, title: str, cases: st.SearchStrategy[Case], weight: float = 1.0) -> Probe:
    return Probe(rule, title, cases, truth_and_bounds, examine_agreement, weight=weight)


def dense_meaning(case: Case) -> np.ndarray:
    """What the mask allows, asked pair by pair of the plain predicate (MASK-2)."""
    (B, H, Q, _), K = case.inputs["query"].shape, case.inputs["key"].shape[2]
    return visible_pairs(case.options.get("mask"), None, (B, H, Q, K))


# --- masks ------------------------------------------------------------------------------------------------------------


def prepare_description(case: Case) -> tuple[Any, Any, Any]:
    return dense_meaning(case), *truth_and_bounds(case)


def examine_description(subject: Subject, case: Case, shared: tuple[Any, Any, Any]) -> Findings:
    """The array is the description's meaning exactly, and attention by that array gives what the description gives."""
    meaning, truth, bounds = shared
    B, H, Q, K = meaning.shape
    with subject.context():
        mask = framework_options(subject, case)["mask"]
        array = subject.numpy(subject.module.materialize(mask, Q, K, batch=B, heads=H))
    if array.dtype != bool or array.ndim != 4 or not np.array_equal(np.broadcast_to(array, meaning.shape), meaning):
        return [Finding("materialize", np.inf, message="differs from the predicate")]
    return judge(case, subject(replace(case, options=case.options | {"mask": Dense(array)})), truth, bounds)


def identical(name: str, left: np.ndarray, right: np.ndarray) -> Finding:
    same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=True)
    return Finding(name, 0.0 if same else np.inf, message="" if same else "differs between two equal calls")


def examine_shapes(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """A mask [Q, K], also as [1, 1, Q, K] and as [B, H, Q, K], a bare array and `Dense` of it: all mean the same."""
    array = np.asarray(case.options["mask"].array)
    whole = np.broadcast_to(array, (*case.inputs["query"].shape[:2], *array.shape))
    forms = (array, Dense(array), Dense(array[None, None]), Dense(whole))
    answers = (subject(replace(case, options=case.options | {"mask": form})) for form in forms)
    return [finding for answer in answers for finding in judge(case, answer, *shared)]


@st.composite
def flat_masks(draw: st.DrawFn) -> Case:
    case = draw(attention_cases(mask="none"))
    d = Draw(draw(seeds), case.dtype)
    shape = (case.inputs["query"].shape[2], case.inputs["key"].shape[2])
    return replace(case, options=case.options | {"mask": Dense(d.booleans(*shape))})


# --- special values ---------------------------------------------------------------------------------------------------


def prepare_planted(planted: Planted) -> tuple[Any, Any]:
    return expectation(planted, oracle(planted.clean)), bound(planted.clean)


def examine_planted(subject: Subject, planted: Planted, shared: tuple[Any, Any]) -> Findings:
    """NaN where NaN is due, the clean case's answer elsewhere; a planted infinity may also show as an infinity."""
    answers = subject(planted.planted)
    if planted.infinite:
        answers = {name: np.where(np.isinf(a), a.dtype.type(np.nan), a) for name, a in answers.items()}
    return judge(planted.planted, answers, *shared)


def prepare_nan_rows(twins: tuple[Case, Case]) -> tuple[Any, Any]:
    truth, bounds = truth_and_bounds(twins[1])
    return nan_rows(twins[1], truth), bounds


def examine_nan_rows(subject: Subject, twins: tuple[Case, Case], shared: tuple[Any, Any]) -> Findings:
    return judge(twins[0], subject(twins[0]), *shared)


def examine_empty_rows(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """Agreement, and exact zeros where a row allows nothing: for these no rounding is an excuse."""
    answers = subject(case)
    findings = judge(case, answers, *shared)
    if case.options.get("empty_rows", "zero") == "zero" and case.operation != "attention_logsumexp":
        names = ["output", *(n for n in (gradient_name("query"),) if n in answers)]
        findings += [zero(f"{name} of empty rows", answers[name][empty_rows(case)]) for name in names]
    return findings


def zero(name: str, array: np.ndarray) -> Finding:
    wrong = array[~(array == 0)]
    return Finding(name, np.inf if wrong.size else 0.0, message=f"holds {wrong[0]}, expected 0" if wrong.size else "")


def prepare_twin(twins: tuple[Case, Case]) -> tuple[Any, Any]:
    return truth_and_bounds(twins[1])


def examine_twin(subject: Subject, twins: tuple[Case, Case], shared: tuple[Any, Any]) -> Findings:
    """The first case must give what the second, harmless one gives, gradients included."""
    return judge(twins[0], subject(twins[0]), *shared)


def examine_towering(subject: Subject, twins: tuple[Case, Case], shared: tuple[Any, Any]) -> Findings:
    """Output and the values' gradient as in the harmless case; the others are as large as the scale, but no NaN."""
    truth, bounds = shared
    answers = subject(twins[0])
    names = ("output", gradient_name("value"))
    findings = judge(twins[0], answers, {name: truth[name] for name in names}, bounds)
    for name in (gradient_name("query"), gradient_name("key")):
        wrong = np.isnan(answers[name].astype(float)).any()
        findings.append(Finding(name, np.inf if wrong else 0.0, message="is NaN" if wrong else ""))
    return findings


# --- determinism ------------------------------------------------------------------------------------------------------


def examine_determinism(subject: Subject, case: Case, shared: Any) -> Findings:
    """The same bits twice, another call in between; inputs untouched; results that share no memory with anything."""
    with subject.context():
        inputs = {name: subject.array(array) for name, array in case.inputs.items()}
        options = framework_options(subject, case)
        earlier = call(subject, case, inputs, options)
        kept = {name: np.array(subject.numpy(result)) for name, result in earlier.items()}
        others = {n: subject.array(a[..., ::-1].copy() if a.dtype.kind == "f" else a) for n, a in case.inputs.items()}
        between = call(subject, case, others, options)
        second = call(subject, case, inputs, options)
        findings = [
            identical(name, array, subject.numpy(results[name]))
            for results in (earlier, second)
            for name, array in kept.items()
        ]
        if case.cotangents:
            again = subject(case)
            findings += [identical(name, array, again[name]) for name, array in subject(case).items()]
        for name, array in case.inputs.items():
            if not np.array_equal(array, subject.numpy(inputs[name]), equal_nan=array.dtype.kind != "i"):
                findings.append(Finding(name, np.inf, message="was changed by the call"))
        if subject.mutable:
            arrays = {f"input {name}": array for name, array in inputs.items()}
            arrays |= {f"earlier {name}": array for name, array in earlier.items()}
            arrays |= {f"other {name}": array for name, array in between.items()}
            for name, result in second.items():
                for other, array in arrays.items():
                    if np.shares_memory(subject.numpy(result), subject.numpy(array)):
                        findings.append(Finding(name, np.inf, message=f"shares memory with {other}"))
    return findings


def call(subject: Subject, case: Case, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    positional, keywords = arguments(case.operation, inputs, options)
    return results_by_name(case.operation, getattr(subject.module, case.operation)(*positional, **keywords))


# --- splits -----------------------------------------------------------------------------------------------------------


@st.composite
def splits(draw: st.DrawFn) -> tuple[Case, tuple[int, ...]]:
    """A case of attention, and where its keys are cut into parts."""
    case = draw(attention_cases(mask="maybe", others=False, gradients=False, dtypes=("float32", "float64")))
    case = replace(case, options=case.options | {"mask": Dense(np.array(dense_meaning(case)))})
    keys = case.inputs["key"].shape[2]
    return case, tuple(sorted(draw(st.lists(st.integers(0, keys), min_size=1, max_size=3))))


def parts_of(case: Case, cuts: tuple[int, ...]) -> list[Case]:
    """The case on each part of its keys."""

    def part(start: int, stop: int) -> Case:
        inputs = {n: a if n == "query" else a[:, :, start:stop] for n, a in case.inputs.items()}
        mask = Dense(case.options["mask"].array[..., start:stop])
        return replace(case, inputs=inputs, options=case.options | {"mask": mask})

    return [part(start, stop) for start, stop in pairwise((0, *cuts, case.inputs["key"].shape[2]))]


def logsumexp_of(case: Case) -> Case:
    inputs = {name: array for name, array in case.inputs.items() if name != "value"}
    return replace(case, operation="attention_logsumexp", inputs=inputs)


def prepare_split(split: tuple[Case, tuple[int, ...]]) -> tuple[Any, Any]:
    case, cuts = split
    truth = {"output": oracle(case)["output"], "logsumexp": oracle(logsumexp_of(case))["output"]}
    return truth, merged_bound(parts_of(case, cuts))


def examine_split(subject: Subject, split: tuple[Case, tuple[int, ...]], shared: tuple[Any, Any]) -> Findings:
    case, cuts = split
    named = {}
    for i, part in enumerate(parts_of(case, cuts)):
        named[f"outputs[{i}]"] = subject(part)["output"]
        named[f"logsumexps[{i}]"] = subject(logsumexp_of(part))["output"]
    answers = subject(Case("merge_attention", case.dtype, named))
    return judge(replace(case, operation="merge_attention"), answers, *shared)


# --- layer norm -------------------------------------------------------------------------------------------------------


@st.composite
def constant_rows(draw: st.DrawFn) -> Case:
    case = draw(norm_cases(gradients=False))
    d = Draw(draw(seeds), case.dtype)
    x = case.inputs["x"]
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    rows = d.normal(*(1 if axis - x.ndim in axes else n for axis, n in enumerate(x.shape)), scale=100.0, mean=300.0)
    return replace(case, inputs=case.inputs | {"x": np.array(np.broadcast_to(rows, x.shape))})


def examine_constant_rows(subject: Subject, case: Case, shared: Any) -> Findings:
    bias = case.inputs.get("bias")
    expected = np.zeros_like(case.inputs["x"]) if bias is None else np.broadcast_to(bias, case.inputs["x"].shape)
    got = subject(case)["output"]
    return [zero("output - bias", got.astype(float) - expected.astype(case.inputs["x"].dtype).astype(float))]


@st.composite
def spoiled_rows(draw: st.DrawFn) -> tuple[Case, Case, np.ndarray, np.ndarray]:
    """(the case with NaN or infinity somewhere, the clean case, elements that must be non-finite, spoiled rows).

    Infinity in `rms_norm` leaves the others of its row finite: they are divided by it.
    """
    case = draw(norm_cases(draw(st.sampled_from(("layer_norm", "rms_norm"))), gradients=False))
    x = np.array(case.inputs["x"])
    axes = tuple(range(-case.inputs["weight"].ndim, 0))
    place = tuple(draw(st.integers(0, n - 1)) for n in x.shape)
    x[place] = draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    bad = ~np.isfinite(x.astype(float))
    rows = np.broadcast_to(bad.any(axis=axes, keepdims=True), x.shape)
    reached = bad if case.operation == "rms_norm" and np.isinf(x[place]) else rows
    return replace(case, inputs=case.inputs | {"x": x}, special=True), case, reached, rows


def examine_spoiled_rows(subject: Subject, material: Any, shared: tuple[Any, Any]) -> Findings:
    """Non-finite where it must be; the clean case's answer in all other rows."""
    dirty, clean, reached, rows = material
    truth, bounds = shared
    got = subject(dirty)["output"]
    wrong = got[reached & np.isfinite(got.astype(float))]
    finding = Finding("output of spoiled rows", np.inf if wrong.size else 0.0, message=f"holds {wrong[:1]}")
    rest = {"output": np.where(rows, truth["output"].high, got.astype(float)).astype(got.dtype)}
    return [finding, *judge(clean, rest, truth, {"output": np.where(rows, np.inf, bounds["output"])})]


# --- all of them ------------------------------------------------------------------------------------------------------

HALF = ("float16", "bfloat16")
LOWEST = -3.4028234663852886e38
"""The lowest float32, with which some fill what is forbidden."""

PROBES = [
    agreement("MASK-1", "dense masks", attention_cases(mask="dense", others=False)),
    *(
        Probe(
            "MASK-2",
            f"{kind} and its array",
            attention_cases(mask=kind, others=False),
            prepare_description,
            examine_description,
            weight=0.3,
        )
        for kind in (*MASKS, "combined")
    ),
    agreement("MASK-3", "causal", attention_cases(mask="causal", others=False)),
    agreement("MASK-4", "window", attention_cases(mask="window", others=False)),
    Probe("MASK-5", "forms of one mask", flat_masks(), truth_and_bounds, examine_shapes, weight=0.5),
    agreement("MASK-6", "combinations", attention_cases(mask="combined", others=False)),
    Probe(
        "MASK-7",
        "hidden NaN and infinity",
        planted_cases("hidden"),
        prepare_planted,
        examine_planted,
        case_of=lambda p: p.planted,
    ),
    *(
        Probe("MASK-7", f"hidden in {name}", hidden_cases(name), prepare_twin, examine_twin, first, weight=0.5)
        for name in ("attention_weights", "attention_logsumexp", "merge_attention")
    ),
    agreement("ATT-1", "scale", attention_cases(focus=("scale",), others=False), weight=1.5),
    agreement("ATT-1", "default scale", attention_cases(mask="none", others=False)),
    agreement("ATT-2", "softcap", attention_cases(focus=("softcap",), others=False)),
    agreement("ATT-3", "bias", attention_cases(focus=("bias",), others=False)),
    agreement("ATT-3", "bias after softcap", attention_cases(focus=("bias", "softcap"), others=False), weight=0.5),
    *(
        Probe(
            "ATT-4", f"allowed scores of {level:g}", sunken_cases(level), prepare_twin, examine_twin, first, weight=0.4
        )
        for level in (-1e5, -2e9, -1e21, LOWEST)
    ),
    agreement("ATT-5", "weights", attention_cases("attention_weights", others=False)),
    agreement("ATT-5", "sinks", attention_cases(focus=("sinks",), others=False)),
    Probe("ATT-6", "empty rows", empty_row_cases(), truth_and_bounds, examine_empty_rows),
    Probe("ATT-6", "empty rows of weights", empty_row_cases("attention_weights"), truth_and_bounds, examine_empty_rows),
    Probe(
        "ATT-6",
        "empty rows of log-sum-exp",
        empty_row_cases("attention_logsumexp"),
        truth_and_bounds,
        examine_empty_rows,
    ),
    Probe("ATT-6", "empty rows as the mean", empty_row_cases(modes=("mean",)), truth_and_bounds, examine_empty_rows),
    Probe(
        "ATT-6",
        "empty rows as NaN",
        nan_row_cases(),
        prepare_nan_rows,
        examine_nan_rows,
        case_of=lambda twins: twins[0],
    ),
    agreement("ATT-7", "grouped heads", attention_cases(grouped=True, others=False)),
    agreement("ATT-8", "every feature", attention_cases(focus=("scale", "softcap", "bias", "sinks"), mask="any")),
    agreement("ATT-8", "one query", attention_cases(plans=SHORT[-1:]), weight=0.5),
    agreement("ATT-8", "lengths of 0", attention_cases(plans=EMPTY), weight=0.5),
    agreement("ATT-9", "16-bit inputs", attention_cases(dtypes=HALF, others=False)),
    Probe(
        "ATT-10",
        "an attended NaN",
        planted_cases("attended"),
        prepare_planted,
        examine_planted,
        case_of=lambda p: p.planted,
        weight=2.0,
    ),
    Probe("ATT-10", "towering logits", towering_cases(), prepare_twin, examine_towering, first),
    agreement("ATT-11", "dropout", attention_cases(focus=("dropout",), others=False)),
    agreement("ATT-12", "gradients", attention_cases(), weight=2.0),
    agreement(
        "ATT-12", "gradients of bias and sinks", attention_cases(focus=("bias", "softcap", "sinks"), others=False)
    ),
    *(
        Probe("ATT-13", name, OPERATIONS[name](DTYPES), lambda _: None, examine_determinism, weight=0.4)
        for name in OPERATIONS
    ),
    agreement("ATT-14", "weights", attention_cases("attention_weights"), weight=1.5),
    agreement("ATT-14", "log-sum-exp", attention_cases("attention_logsumexp"), weight=1.5),
    agreement("ATT-14", "merge", merge_cases(), weight=1.5),
    Probe("ATT-14", "split and merged", splits(), prepare_split, examine_split, first),
    agreement("MHA-1", "fused projections", multi_head_cases(), weight=2.0),
    agreement("MHA-2", "separate heads", multi_head_cases(separate=True)),
    agreement("NORM-1", "layer norm", norm_cases(gradients=False)),
    agreement("NORM-1", "eps left out", norm_cases(spreads=(3e-3, 0.03), default_eps=True), weight=0.5),
    agreement("NORM-2", "16-bit inputs", norm_cases(gradients=False, dtypes=HALF)),
    Probe("NORM-3", "constant rows", constant_rows(), lambda _: None, examine_constant_rows),
    agreement("NORM-4", "far from zero", norm_cases(means=(1e3, -1e4), gradients=False, dtypes=("float32", "float64"))),
    Probe(
        "NORM-5",
        "NaN and infinity",
        spoiled_rows(),
        prepare_twin,
        examine_spoiled_rows,
        first,
    ),
    agreement("NORM-6", "gradients", norm_cases(), weight=2.0),
    agreement("NORM-7", "rms_norm", norm_cases("rms_norm"), weight=2.0),
    agreement("NORM-7", "standard_deviation_norm", norm_cases("standard_deviation_norm"), weight=2.0),
    agreement("POS-1", "sinusoidal", sinusoidal_cases(), weight=2.0),
    agreement("POS-2", "learned", lookup_cases("learned_positions"), weight=2.0),
    agreement("EMB-1", "embedding", lookup_cases("embedding"), weight=2.0),
    *(agreement("FFN-1", f"with {name}", feed_forward_cases((name,))) for name in ACTIVATIONS),
]
