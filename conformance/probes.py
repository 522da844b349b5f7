"""Probes: for every rule, the cases that test it, and by which examination."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance import generation, special
from conformance.cases import Case
from conformance.declaration import EVERYTHING, Declaration
from conformance.examinations import EXAMINATIONS, Examination
from conformance.generation import ACTIVATIONS, EMPTY, MASKS, OPERATIONS, SHORT

HALF = ("float16", "bfloat16")
WIDE = ("float32", "float64")
LOWEST = -3.4028234663852886e38
"""The lowest float32, with which some fill what is forbidden."""


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    operations: those that a subject must have. material: draws what the examination, a name in `EXAMINATIONS`, works
    on. weight: its share of the cases, relative to other probes.
    """

    rule: str
    title: str
    operations: tuple[str, ...]
    material: st.SearchStrategy[Any]
    examined_by: str = "agreement"
    weight: float = 1.0

    @property
    def examination(self) -> Examination:
        return EXAMINATIONS[self.examined_by]


def agreement(rule: str, title: str, operation: str, cases: st.SearchStrategy[Case], weight: float = 1.0) -> Probe:
    return Probe(rule, title, (operation,), cases, weight=weight)


def catalogue(declaration: Declaration = EVERYTHING) -> list[Probe]:
    """Every probe, with cases that are within the declaration; some may have none."""
    return [*attention_probes(declaration), *companion_probes(declaration), *layer_probes(declaration)]


def attention_probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.attention_cases, declaration=declaration)
    alone = partial(cases, others=False)
    operations = ("attention",)

    def agree(rule: str, title: str, cases: st.SearchStrategy[Case], weight: float = 1.0) -> Probe:
        return agreement(rule, title, "attention", cases, weight)

    def twin(rule: str, title: str, material: st.SearchStrategy[Any], by: str = "twin", weight: float = 1.0) -> Probe:
        return Probe(rule, title, operations, material, by, weight)

    return [
        agree("MASK-1", "dense masks", alone(mask="dense")),
        *(
            Probe("MASK-2", f"{kind} and its array", operations, alone(mask=kind), "description", weight=0.3)
            for kind in (*MASKS, "combined")
        ),
        agree("MASK-3", "causal", alone(mask="causal")),
        agree("MASK-4", "window", alone(mask="window")),
        Probe("MASK-5", "forms of one mask", operations, special.flat_masks(declaration), "shapes", weight=0.5),
        agree("MASK-6", "combinations", alone(mask="combined")),
        Probe("MASK-7", "hidden NaN and infinity", operations, special.planted_cases("hidden", declaration), "planted"),
        agree("ATT-1", "scale", alone(focus=("scale",)), weight=1.5),
        agree("ATT-1", "default scale", alone(mask="none")),
        agree("ATT-2", "softcap", alone(focus=("softcap",))),
        agree("ATT-3", "bias", alone(focus=("bias",))),
        agree("ATT-3", "bias after softcap", alone(focus=("bias", "softcap")), weight=0.5),
        *(
            twin("ATT-4", f"allowed scores of {level:g}", special.sunken_cases(level, declaration), weight=0.4)
            for level in (-1e5, -2e9, -1e21, LOWEST)
        ),
        twin("ATT-4", "allowed products far below 0", special.deep_cases(declaration), weight=0.4),
        agree("ATT-5", "softmax", alone(mask="none"), weight=0.5),
        agree("ATT-5", "sinks", alone(focus=("sinks",))),
        Probe("ATT-6", "empty rows", operations, special.empty_row_cases(declaration=declaration), "empty rows"),
        agree("ATT-7", "grouped heads", alone(grouped=True)),
        agree("ATT-8", "every feature", cases(focus=("scale", "softcap", "bias", "sinks"), mask="any")),
        agree("ATT-8", "one query", cases(plans=SHORT[-1:]), weight=0.5),
        agree("ATT-8", "lengths of 0", cases(focus=("empty",), plans=EMPTY), weight=0.5),
        agree("ATT-9", "16-bit inputs", alone(dtypes=HALF)),
        Probe(
            "ATT-10",
            "an attended NaN",
            operations,
            special.planted_cases("attended", declaration),
            "planted",
            weight=2.0,
        ),
        twin("ATT-10", "towering logits", special.towering_cases(declaration), "towering"),
        agree("ATT-11", "dropout", alone(focus=("dropout",))),
        agree("ATT-12", "gradients", cases(focus=("gradients",)), weight=2.0),
        agree(
            "ATT-12", "gradients of bias and sinks", alone(focus=("gradients", "bias", "softcap", "sinks"))
        ),
    ]


def companion_probes(declaration: Declaration) -> list[Probe]:
    """The weights, the log-sum-exp, merging, modes of empty rows, and what holds for every operation."""
    cases = partial(generation.attention_cases, declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    weights, logsumexp = "attention_weights", "attention_logsumexp"
    return [
        *(
            Probe("MASK-7", f"hidden in {name}", (name,), special.hidden_cases(name, declaration), "twin", weight=0.5)
            for name in (weights, logsumexp, "merge_attention")
        ),
        agreement("ATT-5", "weights", weights, cases(weights, others=False)),
        Probe("ATT-6", "empty rows of weights", (weights,), empty(weights), "empty rows"),
        Probe("ATT-6", "empty rows of log-sum-exp", (logsumexp,), empty(logsumexp), "empty rows"),
        *(
            Probe("ATT-6", f"empty rows as {mode}", (name,), empty(name, modes=(mode,)), "empty rows", weight=0.5)
            for name in ("attention", weights)
            for mode in ("mean", "nan")
            if "empty_rows" in declaration
        ),
        *(
            Probe(
                "ATT-13",
                name,
                (name,),
                generation.operation_cases(name, declaration=declaration),
                "determinism",
                weight=0.4,
            )
            for name in OPERATIONS
        ),
        agreement("ATT-14", "weights", weights, cases(weights), weight=1.5),
        agreement("ATT-14", "log-sum-exp", logsumexp, cases(logsumexp), weight=1.5),
        agreement("ATT-14", "merge", "merge_attention", generation.merge_cases(declaration=declaration), weight=1.5),
        Probe(
            "ATT-14",
            "split and merged",
            ("attention", logsumexp, "merge_attention"),
            special.splits(declaration),
            "split",
        ),
    ]


def layer_probes(declaration: Declaration) -> list[Probe]:
    """Multi-head attention, norms, positions, embedding, feed-forward."""
    heads = partial(generation.multi_head_cases, declaration=declaration)
    norms = partial(generation.norm_cases, declaration=declaration)
    network = partial(generation.feed_forward_cases, declaration=declaration)
    deviation = "standard_deviation_norm"
    return [
        agreement("MHA-1", "fused projections", "multi_head_attention", heads(), weight=2.0),
        agreement("MHA-2", "separate heads", "multi_head_attention", heads(separate=True)),
        agreement("NORM-1", "layer norm", "layer_norm", norms(gradients=False)),
        agreement("NORM-1", "eps left out", "layer_norm", norms(spreads=(3e-3, 0.03), default_eps=True), weight=0.5),
        agreement("NORM-2", "16-bit inputs", "layer_norm", norms(gradients=False, dtypes=HALF)),
        Probe("NORM-3", "constant rows", ("layer_norm",), special.constant_rows(declaration), "constant rows"),
        agreement("NORM-4", "far from zero", "layer_norm", norms(means=(1e3, -1e4), gradients=False, dtypes=WIDE)),
        *(
            Probe("NORM-5", f"NaN and infinity in {name}", (name,), material, "spoiled rows", weight=0.5)
            for name in ("layer_norm", "rms_norm")
            for material in (special.spoiled_rows(name, declaration),)
        ),
        agreement("NORM-6", "gradients", "layer_norm", norms(focus=("gradients",)), weight=2.0),
        agreement("NORM-7", "rms_norm", "rms_norm", norms("rms_norm"), weight=2.0),
        agreement("NORM-7", deviation, deviation, norms(deviation), weight=2.0),
        agreement(
            "POS-1",
            "sinusoidal",
            "sinusoidal_positions",
            generation.sinusoidal_cases(declaration=declaration),
            weight=2.0,
        ),
        *(
            agreement(rule, title, name, generation.lookup_cases(name, declaration=declaration), weight=2.0)
            for rule, title, name in (
                ("POS-2", "learned", "learned_positions"),
                ("EMB-1", "embedding", "embedding"),
            )
        ),
        *(agreement("FFN-1", f"with {name}", "feed_forward", network((name,))) for name in ACTIVATIONS),
    ]


PROBES = catalogue()
