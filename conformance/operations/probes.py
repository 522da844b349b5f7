"""Probes: for every rule, the cases that test it, and by which check."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.features import NORMS
from conformance.cases.layouts import LAYOUTS, OF_HEADS, REFUSABLE
from conformance.cases.sizes import Sizes, adapted
from conformance.checks.catalogue import (
    AFTER_OTHER_CALLS,
    AGREEMENT,
    CONSTANT_ROWS,
    DESCRIPTION,
    DETERMINISM,
    EMPTY_ROWS,
    INTERLEAVED,
    MEMORY,
    PLANTED,
    REPETITIONS,
    SHAPES,
    SPLIT,
    SPOILED_ROWS,
    THREADS,
    TOWERING,
    TWIN,
    taken_as_array,
)
from conformance.checks.check import Check
from conformance.checks.histories import asking_gradients, histories, repeatable
from conformance.sampling import special
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Material, Rows
from conformance.sampling.layouts import memory_cases
from conformance.sampling.plan import attention as attention_plan
from conformance.sampling.plan import layers as layer_plan
from conformance.sampling.plan.covering import Row
from conformance.sampling.strategies import (
    ACTIVATIONS,
    ALIKE,
    DTYPES,
    EMPTY,
    KERNEL_WIDTHS,
    LONG,
    MASKS,
    NORM_SHAPES,
    ONE_KEY,
    OPERATIONS,
    SHORT,
    THOUSANDS,
    NormShape,
)
from specification import Dense

HALF = ("float16", "bfloat16")
WIDE = ("float32", "float64")
LOWEST = -3.4028234663852886e38
"""The lowest float32, with which some fill what is forbidden."""


@dataclass(frozen=True)
class Probe:
    """What tests one rule.

    operations: those that a subject must have. material: draws what the check works on. weight: its share
    of the cases, relative to other probes.
    """

    rule: str
    title: str
    operations: tuple[str, ...]
    material: Material
    check: Check[Any, Any] = AGREEMENT
    weight: float = 1.0


def agreement(rule: str, title: str, operation: str, cases: Material, weight: float = 1.0) -> Probe:
    return Probe(rule, title, (operation,), cases, weight=weight)


def catalogue(declaration: Declaration = EVERYTHING) -> list[Probe]:
    """Every probe, with cases that are within the declaration; some may have none."""
    probes = [
        *attention_probes(declaration),
        *companion_probes(declaration),
        *layer_probes(declaration),
        *size_probes(declaration),
    ]
    probes += [probe for name in OPERATIONS for probe in state_probes(name, declaration)]
    return [probe for probe in probes if taken_as_array(probe.check, declaration)]


def probes_of(rule: str, operation: str, declaration: Declaration) -> list[Probe]:
    """Those that ask one operation alone about the rule, in the catalogue's order."""
    return [p for p in catalogue(declaration) if p.rule == rule and p.operations == (operation,)]


def featured_in(declaration: Declaration) -> tuple[str, ...]:
    """What changes scores and softmax, as far as the subject has it."""
    return tuple(feature for feature in ("scale", "softcap", "bias", "sinks") if feature in declaration)


def unscaled(case: Case) -> Case:
    """The same with a scale of 0, which is not the same as none."""
    return replace(case, options=case.options | {"scale": 0.0})


def negated(case: Case) -> Case:
    """The same with a scale below 0."""
    return replace(case, options=case.options | {"scale": -abs(case.options["scale"]) or -0.5})


def by_head(case: Case) -> bool:
    """Whether each query head has a mask of its own."""
    mask = case.options["mask"]
    shape = np.shape(mask.array if isinstance(mask, Dense) else mask)
    return len(shape) == 4 and shape[1] > 1


def forbidding(case: Case) -> bool:
    """Whether the bias does, by -inf."""
    return bool(np.isneginf(case.inputs["bias"].astype(float)).any())


VECTOR_WIDTHS: tuple[NormShape, ...] = tuple(((3, width), 1) for width in (4, 8, 16, 32, 64, 96, 128, 256))
"""Rows of norms that kernels read in vectors of 16 bytes."""


KERNEL_TILES = (
    *(Sizes(2, 4, 2, 5, 70, 128, 64), Sizes(2, 4, 2, 3, 70, 64, 128), Sizes(2, 2, 2, 4, 130, 128, 128)),
    *(Sizes(2, 4, 2, 2, 70, 128, 96), Sizes(3, 2, 2, 6, 80, 64, 64)),
)
"""Widths for which kernels are made, and more than one tile of keys."""


def memory_plans(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Cases of an operation in the sizes for which kernels read arrays in their own way, mostly with all arrays."""
    if operation in NORMS:
        return generation.norm_cases(operation, plans=(*NORM_SHAPES, *VECTOR_WIDTHS), declaration=declaration)
    if not operation.startswith("attention"):
        return generation.operation_cases(operation, declaration=declaration)
    plans = (*SHORT[:2], *KERNEL_WIDTHS, *KERNEL_TILES)
    cases = partial(generation.attention_cases, operation, plans=plans, declaration=declaration)
    if not {"bias", "dense"} & declaration.features:
        return cases()
    every = cases("dense" if "dense" in declaration else "none", tuple({"bias"} & declaration.features))
    return st.integers(0, 2).flatmap(lambda which: every if which < 2 else cases())


def attention_probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.attention_cases, declaration=declaration)
    alone = partial(cases, others=False)
    far = partial(special.far_cases, "attention", declaration=declaration)
    operations, featured = ("attention",), featured_in(declaration)

    def agree(rule: str, title: str, cases: st.SearchStrategy[Case], weight: float = 1.0) -> Probe:
        return agreement(rule, title, "attention", cases, weight)

    def twin(
        rule: str, title: str, material: st.SearchStrategy[Any], by: Check[Any, Any] = TWIN, weight: float = 1.0
    ) -> Probe:
        return Probe(rule, title, operations, material, by, weight)

    return [
        agree("MASK-1", "dense masks", alone(mask="dense")),
        agree("MASK-1", "as many heads as batch elements", special.narrow_masks(declaration), weight=0.8),
        agree(
            "MASK-1", "a mask for each of grouped heads", alone(mask="dense", grouped=True).filter(by_head), weight=0.5
        ),
        *(
            Probe("MASK-2", f"{kind} and its array", operations, alone(mask=kind), DESCRIPTION, weight=0.3)
            for kind in (*MASKS, "combined")
        ),
        *(agree("MASK-2", kind, alone(mask=kind), weight=0.4) for kind in MASKS if "structured" in declaration),
        *(
            agree("MASK-2", f"{kind}, many keys", alone(mask=kind, plans=LONG), weight=1.5)
            for kind in ("lengths", "padding", "segments")
        ),
        agree("MASK-3", "causal", alone(mask="causal"), weight=1.5),
        agree("MASK-3", "causal, many keys", alone(mask="causal", plans=LONG), weight=0.5),
        agree("MASK-4", "window", alone(mask="window").filter(special.narrow), weight=2.0),
        agree("MASK-4", "window, many keys", alone(mask="window", plans=LONG)),
        *(
            Probe("MASK-5", title, operations, special.flat_masks(plans, declaration), SHAPES, weight=0.5)
            for title, plans in (("forms of one mask", None), ("as many queries as batch elements", ALIKE))
        ),
        agree("MASK-6", "combinations", alone(mask="combined")),
        agree("MASK-6", "mask and bias", alone(mask="any", focus=("bias",)), weight=2.0),
        Probe("MASK-7", "hidden NaN and infinity", operations, special.planted_cases("hidden", declaration), PLANTED),
        Probe(
            "MASK-7",
            "hidden infinities in the values",
            operations,
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.inf, -np.inf)),
            PLANTED,
            weight=0.8,
        ),
        Probe(
            "MASK-7",
            "hidden NaN in thousands of values",
            operations,
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.nan,), plans=THOUSANDS),
            PLANTED,
            weight=0.5,
        ),
        agree("ATT-1", "scale", alone(focus=("scale",)), weight=1.5),
        agree("ATT-1", "scale 0", alone(focus=("scale",)).map(unscaled), weight=0.3),
        agree("ATT-1", "scale below 0", alone(focus=("scale",)).map(negated), weight=0.3),
        agree("ATT-1", "default scale", alone(mask="none")),
        agree("ATT-2", "softcap", alone(focus=("softcap",))),
        agree("ATT-2", "softcap of scaled scores", alone(focus=("scale", "softcap")), weight=0.5),
        agree("ATT-3", "bias", alone(focus=("bias",))),
        agree("ATT-3", "bias beside 16-bit inputs", alone(focus=("bias",), dtypes=HALF), weight=0.8),
        agree("ATT-3", "bias after softcap", alone(focus=("bias", "softcap")), weight=0.5),
        *(
            twin("ATT-4", f"allowed scores of {level:g}", special.sunken_cases(level, declaration), weight=0.4)
            for level in (-1e5, -2e9, -1e21, LOWEST)
        ),
        twin("ATT-4", "allowed products far below 0", special.deep_cases(declaration), weight=0.8),
        agree("ATT-5", "softmax", alone(mask="none"), weight=1.5),
        agree("ATT-5", "sinks", alone(focus=("sinks",))),
        agree("ATT-5", "sinks far from the scores", far(("sinks",)), weight=0.3),
        *(agree("ATT-5", f"sinks beside {f}", alone(focus=(f, "sinks")), weight=0.6) for f in ("scale", "softcap")),
        twin("ATT-5", "sinks of -inf", special.absent_sinks("attention", declaration)),
        Probe("ATT-6", "empty rows", operations, special.empty_row_cases(declaration=declaration), EMPTY_ROWS),
        *(
            Probe("ATT-6", f"empty rows beside {feature}", operations, material, EMPTY_ROWS, weight=0.5)
            for feature in ("bias", "sinks")
            for material in (special.empty_row_cases(declaration=declaration, focus=(feature,)),)
        ),
        agree("ATT-7", "grouped heads", alone(grouped=True)),
        agree("ATT-7", "one key head", alone(grouped=True, plans=SHORT[1:2]), weight=0.5),
        agree("ATT-8", "every feature", cases(focus=featured, mask="any")),
        *(agree("ATT-8", f"{adapted(s, declaration).K} keys", cases(plans=(s,)), weight=0.5) for s in LONG),
        agree("ATT-8", "one query", cases(plans=SHORT[-1:]), weight=0.5),
        agree("ATT-8", "one query, every feature", cases(focus=featured, mask="any", plans=SHORT[-1:]), weight=0.8),
        agree("ATT-8", "one key", cases(plans=ONE_KEY), weight=0.3),
        agree("ATT-8", "lengths of 0", cases(focus=("empty",), plans=EMPTY), weight=0.5),
        *(
            agree("ATT-8", f"{axis} = 0", cases(focus=("empty",), plans=(s,)), weight=0.3)
            for axis, s in zip("BHQKV", EMPTY, strict=True)
        ),
        agree("ATT-9", "16-bit inputs", alone(dtypes=HALF), weight=1.5),
        agree("ATT-9", "float32 inputs", alone(dtypes=("float32",)), weight=0.5),
        agree("ATT-9", "float64 inputs", alone(dtypes=("float64",)), weight=0.3),
        Probe(
            "ATT-10",
            "an attended NaN",
            operations,
            special.planted_cases("attended", declaration),
            PLANTED,
            weight=2.0,
        ),
        Probe(
            "ATT-10",
            "an attended NaN in a value",
            operations,
            special.planted_cases("attended", declaration, ("value",)),
            PLANTED,
        ),
        Probe(
            "ATT-10",
            "an attended NaN that is dropped",
            operations,
            special.planted_cases("attended", declaration, ("value",), focus=("dropout",)),
            PLANTED,
            weight=0.5,
        ),
        twin("ATT-10", "scores of -inf", special.infinite_scores(declaration), weight=0.5),
        *(
            twin("ATT-10", f"towering logits{of}", special.towering_cases(scales, declaration), TOWERING)
            for of, scales in (("", (2.0**14, 2.0**100)), (" of a negative scale", (-(2.0**14), -(2.0**40))))
        ),
        agree("ATT-10", "scores far from 0", far(), weight=0.5),
        agree("ATT-11", "dropout", alone(focus=("dropout",))),
        agree("ATT-12", "gradients", cases(focus=("gradients",)), weight=2.0),
        agree("ATT-12", "gradients of bias and sinks", alone(focus=("gradients", "bias", "softcap", "sinks"))),
        *(
            agree("ATT-12", f"gradients beside {name}", alone(focus=("gradients", name)), weight=0.4)
            for name in ("bias", "sinks", "softcap")
        ),
    ]


def companion_probes(declaration: Declaration) -> list[Probe]:
    """The weights, the log-sum-exp, merging, modes of empty rows, and what holds for every operation."""
    cases = partial(generation.attention_cases, declaration=declaration)
    alone = partial(cases, others=False)
    empty = partial(special.empty_row_cases, declaration=declaration)
    merges = partial(generation.merge_cases, declaration=declaration)
    weights, logsumexp, featured = "attention_weights", "attention_logsumexp", featured_in(declaration)
    return [
        *(
            Probe("MASK-7", f"hidden in {name}", (name,), special.hidden_cases(name, declaration), TWIN, weight=0.8)
            for name in (weights, logsumexp, "merge_attention")
        ),
        agreement("ATT-5", "weights", weights, cases(weights, others=False)),
        agreement("ATT-5", "weights beside sinks", weights, cases(weights, others=False, focus=("sinks",)), weight=0.5),
        Probe(
            "ATT-5",
            "log-sum-exp beside sinks of -inf",
            (logsumexp,),
            special.absent_sinks(logsumexp, declaration),
            TWIN,
            weight=0.5,
        ),
        Probe("ATT-6", "empty rows of weights", (weights,), empty(weights), EMPTY_ROWS),
        Probe("ATT-6", "empty rows of log-sum-exp", (logsumexp,), empty(logsumexp), EMPTY_ROWS),
        Probe("ATT-6", "empty rows with a sink", (logsumexp,), empty(logsumexp, focus=("sinks",)), EMPTY_ROWS, 0.5),
        *(
            Probe("ATT-6", f"empty rows as {mode}", (name,), empty(name, modes=(mode,)), EMPTY_ROWS, weight=0.8)
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
                DETERMINISM,
                weight=0.4,
            )
            for name in OPERATIONS
        ),
        *(
            Probe("ATT-13", f"memory of {name}: {layout}", (name,), material, by)
            for name in OPERATIONS
            for layout in LAYOUTS
            if name != "sinusoidal_positions" and declaration.strides
            if layout not in OF_HEADS or "attention" in name
            for material in (memory_cases(memory_plans(name, declaration), layout, declaration),)
            for by in (MEMORY if layout in REFUSABLE else AGREEMENT,)
        ),
        *(
            Probe("ATT-13", f"attention, {title}", ("attention",), material, DETERMINISM)
            for title, material in (
                ("bias and mask", cases(focus=("bias",), mask="dense").filter(forbidding)),
                ("dropout and mask", alone(focus=("dropout",), mask="dense")),
                ("lengths", cases(mask="lengths")),
                ("equal widths", cases(plans=LONG[-1:])),
                ("one key", cases(mask="none", others=False, plans=ONE_KEY)),
            )
        ),
        agreement("ATT-14", "weights", weights, cases(weights), weight=1.5),
        agreement("ATT-14", "log-sum-exp", logsumexp, cases(logsumexp), weight=1.5),
        *(
            agreement("ATT-14", f"{title}, every feature", name, cases(name, focus=featured, mask="any"), weight=0.5)
            for title, name in (("weights", weights), ("log-sum-exp", logsumexp))
        ),
        *(
            agreement("ATT-14", title, logsumexp, special.far_cases(logsumexp, focus, declaration), weight=0.4)
            for title, focus in (("log-sum-exp far from 0", ()), ("log-sum-exp of sinks far from 0", ("sinks",)))
        ),
        agreement("ATT-14", "merge", "merge_attention", merges(), weight=1.5),
        agreement(
            "ATT-14", "merge of far parts", "merge_attention", merges(("float32", *HALF), (2, 3, 4), 100.0), weight=0.5
        ),
        agreement("ATT-14", "merge in 16 bits", "merge_attention", merges(HALF, (3, 4)), weight=0.5),
        Probe(
            "ATT-14",
            "split and merged",
            ("attention", logsumexp, "merge_attention"),
            special.splits(declaration),
            SPLIT,
        ),
    ]


def state_probes(name: str, declaration: Declaration) -> list[Probe]:
    """What an operation keeps between calls, or shares among them."""
    few = st.one_of(*histories(name, declaration, 3).values())
    few_shapes = 0.1 if declaration.compiled else 1.0
    found = [
        (f"after other {kind} in {name}", calls, AFTER_OTHER_CALLS, (0.4 if name in NORMS else 0.2) * few_shapes)
        for kind, calls in histories(name, declaration).items()
    ]
    found.append((f"many equal calls of {name}", repeatable(name, declaration), REPETITIONS, 1.0 * few_shapes))
    if "gradients" in declaration and name != "sinusoidal_positions":
        found.append((f"alternating passes of {name}", asking_gradients(few, 2), INTERLEAVED, 0.3))
    found.append((f"several threads in {name}", few, THREADS, 0.3 if declaration.compiled else 0.8))
    return [Probe("ATT-13", title, (name,), material, by, weight) for title, material, by, weight in found]


def layer_probes(declaration: Declaration) -> list[Probe]:
    """Multi-head attention, norms, positions, embedding, feed-forward."""
    heads = partial(generation.multi_head_cases, declaration=declaration)
    norms = partial(generation.norm_cases, declaration=declaration)
    network = partial(generation.feed_forward_cases, declaration=declaration)
    constant = partial(special.constant_rows, declaration=declaration)
    deviation = "standard_deviation_norm"
    return [
        agreement("MHA-1", "fused projections", "multi_head_attention", heads(), weight=2.0),
        agreement("MHA-2", "separate heads", "multi_head_attention", heads(separate=True), weight=2.0),
        agreement("NORM-1", "layer norm", "layer_norm", norms(gradients=False)),
        *(
            agreement("NORM-1", f"rows of {list(x[-n:])}", "layer_norm", norms(plans=((x, n),)), weight=0.2)
            for x, n in NORM_SHAPES
        ),
        agreement("NORM-1", "eps left out", "layer_norm", norms(spreads=(3e-3, 0.03), default_eps=True), weight=0.5),
        agreement(
            "NORM-1",
            "a tiny eps",
            "layer_norm",
            norms(means=(0.0,), spreads=(1e-4, 1e-3), epsilons=(1e-12,)),
            weight=0.4,
        ),
        agreement("NORM-2", "16-bit inputs", "layer_norm", norms(gradients=False, dtypes=HALF), weight=2.0),
        Probe("NORM-3", "constant rows", ("layer_norm",), constant(), CONSTANT_ROWS, 2.5),
        agreement("NORM-4", "far from zero", "layer_norm", norms(means=(1e3, -1e4), gradients=False, dtypes=WIDE)),
        agreement("NORM-4", "a first element far from the others", "layer_norm", special.outlying_rows(declaration)),
        *(
            Probe("NORM-5", f"NaN and infinity in {name}", (name,), material, SPOILED_ROWS, weight=0.5)
            for name in ("layer_norm", "rms_norm")
            for material in (special.spoiled_rows(name, declaration),)
        ),
        agreement("NORM-6", "gradients", "layer_norm", norms(focus=("gradients",)), weight=2.0),
        agreement("NORM-7", "rms_norm", "rms_norm", norms("rms_norm"), weight=2.0),
        agreement("NORM-7", deviation, deviation, norms(deviation), weight=2.0),
        Probe("NORM-7", f"constant rows of {deviation}", (deviation,), constant(deviation), CONSTANT_ROWS, 1.5),
        agreement(
            "NORM-7",
            f"gradients in constant rows of {deviation}",
            deviation,
            constant(deviation, gradients=True, focus=("gradients",)),
            weight=0.5,
        ),
        agreement(
            "POS-1",
            "sinusoidal",
            "sinusoidal_positions",
            generation.sinusoidal_cases(declaration=declaration),
            weight=1.7,
        ),
        agreement(
            "POS-1",
            "far positions",
            "sinusoidal_positions",
            generation.sinusoidal_cases(offsets=(10_007, 20_011), declaration=declaration),
            weight=0.5,
        ),
        *(
            agreement(rule, title, name, generation.lookup_cases(name, declaration=declaration), weight=2.0)
            for rule, title, name in (
                ("POS-2", "learned", "learned_positions"),
                ("EMB-1", "embedding", "embedding"),
            )
        ),
        agreement(
            "EMB-1",
            "rows of 16 bits scaled",
            "embedding",
            generation.lookup_cases("embedding", (True,), HALF, declaration=declaration),
            weight=0.5,
        ),
        *(agreement("FFN-1", f"with {name}", "feed_forward", network((name,)), weight=2.0) for name in ACTIVATIONS),
    ]


# --- the plan of sizes ------------------------------------------------------------------------------------------------

OFTEN = 3
"""At planned sizes one case in so many has each feature."""
Cases = Callable[..., st.SearchStrategy[Case]]


def size_probes(declaration: Declaration) -> list[Probe]:
    """Every operation at the sizes of its plan."""
    return [*attention_at_sizes(declaration), *companions_at_sizes(declaration), *layers_at_sizes(declaration)]


def attention_at_sizes(declaration: Declaration) -> list[Probe]:
    def at(rule: str, title: str, plan: str, weight: float = 1.0, **given: Any) -> Probe:
        return planned(rule, f"{title}, {plan}", plan, "attention", declaration, weight, **given)

    gradients = ("gradients",)
    return [
        *(at("MASK-1", "dense", plan, mask="dense") for plan in ("lengths", "features")),
        *(at("MASK-2", kind, "lengths", mask=kind) for kind in ("lengths", "padding", "segments")),
        at("MASK-3", "causal", "lengths", mask="causal"),
        at("MASK-4", "window", "lengths", mask="window"),
        at("MASK-6", "combined", "lengths", 0.5, mask="combined"),
        *(at("ATT-1", "scale", plan, focus=("scale",)) for plan in ("widths", "features")),
        at("ATT-1", "default scale", "widths", mask="none"),
        at("ATT-2", "softcap", "features", focus=("softcap",)),
        at("ATT-3", "bias", "features", focus=("bias",)),
        at("ATT-5", "softmax", "features", mask="none"),
        at("ATT-5", "sinks", "features", focus=("sinks",)),
        at("ATT-7", "grouped heads", "heads", grouped=True),
        at("ATT-8", "everything", "everything", others=True, rate=OFTEN),
        at("ATT-9", "16-bit inputs", "features", dtypes=HALF),
        at("ATT-11", "dropout", "features", focus=("dropout",)),
        *(at("ATT-12", "gradients", plan, focus=gradients, others=True) for plan in ("features", "lengths")),
        at("ATT-12", "gradients", "heads", mask="none", focus=gradients, others=True),
        at("ATT-12", "gradients", "widths", focus=gradients),
        *(
            at("ATT-12", f"gradients beside {name}", "features", weight, focus=(*gradients, name))
            for name, weight in (("bias", 2.0), ("sinks", 2.0), ("softcap", 0.5))
        ),
    ]


def companions_at_sizes(declaration: Declaration) -> list[Probe]:
    merges = partial(generation.merge_cases, declaration=declaration)
    plain, rich = dict[str, Any](mask="none"), dict[str, Any](others=True, rate=OFTEN)
    return [
        *(
            planned("ATT-14", f"{title}, {plan}", plan, name, declaration, **given)
            for title, name in (("weights", "attention_weights"), ("log-sum-exp", "attention_logsumexp"))
            for plan, given in (("features", plain), ("lengths", rich))
        ),
        agreement("ATT-14", "merge, sizes", "merge_attention", rows_of(merges, "merges", "merge", declaration)),
        agreement("ATT-14", "merge of many parts", "merge_attention", of_many_parts(merges, declaration)),
    ]


MANY_PARTS = (5, 8, 9, 16, 17, 33, 64, 65, 129)


def of_many_parts(merges: Cases, declaration: Declaration) -> Rows:
    """Where shapes are compiled, two numbers of parts stand for all."""
    counts = (9, 65) if declaration.compiled else MANY_PARTS
    return Rows(lambda: tuple(merges(parts=(count,), plans=SHORT) for count in counts))


def planned(
    rule: str,
    title: str,
    plan: str,
    operation: str,
    declaration: Declaration,
    weight: float = 1.0,
    others: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    **given: Any,
) -> Probe:
    """A probe with one case for each row of a plan; without rows where the subject lacks what all of them need."""
    cases = partial(generation.attention_cases, operation, others=others, declaration=declaration, **given)
    takes = generation.possible(given.get("mask", "maybe"), declaration)
    takes = takes and not set(dtypes).isdisjoint(declaration.dtypes)
    if not takes or not set(given.get("focus", ())) <= declaration.features:
        return agreement(rule, title, operation, Rows(tuple), weight)
    wanted = (lambda s: s.H > s.G) if given.get("grouped") else everything
    return agreement(rule, title, operation, rows_of(cases, plan, title, declaration, wanted, dtypes), weight)


def everything(sizes: Sizes) -> bool:
    return True


def rows_of(
    cases: Cases,
    plan: str,
    title: str,
    declaration: Declaration,
    wanted: Callable[[Sizes], bool] = everything,
    dtypes: tuple[str, ...] = DTYPES,
) -> Rows:
    """One strategy for each row of a plan. By the title, each probe has other sizes of the same ranges.

    Where shapes are compiled, each row has one dtype too.
    """
    able = [dtype for dtype in dtypes if dtype in declaration.dtypes and dtype != "float64"] or [*dtypes]

    def of(sizes: tuple[Sizes, ...]) -> tuple[st.SearchStrategy[Case], ...]:
        every = [(able[index % len(able)],) if declaration.compiled else dtypes for index in range(len(sizes))]
        return tuple(cases(plans=(s,), dtypes=some) for s, some in zip(sizes, every, strict=True) if wanted(s))

    def later() -> tuple[st.SearchStrategy[Case], ...]:
        return of(attention_plan.thorough_plan(declaration)) if plan == "everything" else ()

    return Rows(lambda: of(attention_plan.plan_of(plan, declaration, zlib.crc32(title.encode()))), later)


def layers_at_sizes(declaration: Declaration) -> list[Probe]:
    def norms(operation: str, title: str, **given: Any) -> Rows:
        def cases(row: Row) -> st.SearchStrategy[Case]:
            shapes = generation.norm_shapes(row["rows"], row["norm_width"])
            return generation.norm_cases(operation, plans=shapes, declaration=declaration, **given)

        return rows_of_layers("norm", cases, declaration, zlib.crc32(title.encode()))

    def network(row: Row) -> st.SearchStrategy[Case]:
        sizes = (row["rows"], row["model_width"]), row["inner_width"], row["outer_width"]
        return generation.feed_forward_cases(plans=(sizes,), declaration=declaration)

    def table(operation: str) -> Callable[[Row], st.SearchStrategy[Case]]:
        def cases(row: Row) -> st.SearchStrategy[Case]:
            sizes = row["vocabulary"], row["model_width"], (row.get("rows", row.get("length", 1)),)
            return generation.lookup_cases(operation, plans=(sizes,), declaration=declaration)

        return cases

    def positions(row: Row) -> st.SearchStrategy[Case]:
        return generation.sinusoidal_cases(plan=(row["length"], row["model_width"]), declaration=declaration)

    def heads(title: str, plan: str, separate: bool = False) -> Rows:
        cases = partial(generation.multi_head_cases, separate=separate, declaration=declaration)
        return rows_of(cases, plan, title, declaration, few_columns)

    others: tuple[tuple[str, str, Callable[[Row], st.SearchStrategy[Case]]], ...] = (
        ("FFN-1", "feed_forward", network),
        ("EMB-1", "embedding", table("embedding")),
        ("POS-2", "learned_positions", table("learned_positions")),
        ("POS-1", "sinusoidal_positions", positions),
    )
    deviation, narrow = "standard_deviation_norm", {"gradients": False, "dtypes": HALF}
    far = {"gradients": False, "dtypes": WIDE, "means": (1e3, -1e4), "far": True}
    return [
        agreement("NORM-1", "layer norm, sizes", "layer_norm", norms("layer_norm", "output", gradients=False)),
        agreement("NORM-2", "16-bit inputs, sizes", "layer_norm", norms("layer_norm", "16 bits", **narrow), 0.3),
        agreement("NORM-4", "far from zero, sizes", "layer_norm", norms("layer_norm", "far", **far)),
        agreement("NORM-6", "gradients, sizes", "layer_norm", norms("layer_norm", "grad", focus=("gradients",))),
        *(agreement("NORM-7", f"{name}, sizes", name, norms(name, name)) for name in ("rms_norm", deviation)),
        *(agreement(rule, "sizes", name, rows_of_layers(name, cases, declaration)) for rule, name, cases in others),
        agreement("MHA-1", "heads", "multi_head_attention", heads("MHA-1", "heads")),
        agreement("MHA-1", "widths", "multi_head_attention", heads("MHA-1", "widths")),
        *(
            agreement("MHA-2", plan, "multi_head_attention", heads("MHA-2", plan, separate=True))
            for plan in ("heads", "widths")
        ),
        *(
            agreement(rule, "model widths", "multi_head_attention", wide_models(declaration, rule == "MHA-2"))
            for rule in ("MHA-1", "MHA-2")
        ),
    ]


MODELS = (
    *((65, 5, 4, 3), (6, 129, 4, 3), (6, 5, 257, 3), (6, 5, 4, 576), (33, 33, 33, 33)),
    *((1025, 40, 24, 1025), (300, 70, 6, 5), (2000, 7, 300, 40)),
)
"""Widths of query, key, value and output of multi-head attention."""


def wide_models(declaration: Declaration, separate: bool) -> Rows:
    limit = declaration.limits.get("model_width", max(map(max, MODELS)))
    widths = dict.fromkeys((min(a, limit), min(b, limit), min(c, limit), min(d, limit)) for a, b, c, d in MODELS)
    cases = partial(generation.multi_head_cases, separate, plans=SHORT, declaration=declaration)
    return Rows(lambda: tuple(cases(model_widths=model) for model in widths))


def rows_of_layers(
    operation: str, cases: Callable[[Row], st.SearchStrategy[Case]], declaration: Declaration, seed: int = 0
) -> Rows:
    return Rows(lambda: tuple(map(cases, layer_plan.plan_of(operation, declaration, seed))))


def few_columns(s: Sizes) -> bool:
    """Whether the projections of so many heads have no more columns than models have."""
    return s.H <= 128 and s.H * (s.D + s.V) <= 2**14


PROBES = catalogue(replace(EVERYTHING, compiled=True))
"""For the three implementations together, one of which compiles for every shape."""
