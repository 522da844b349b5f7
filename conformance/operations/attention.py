"""Attention: every query's mean of the values, weighted by how well their keys fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import (
    AGREEMENT,
    DESCRIPTION,
    DETERMINISM,
    EMPTY_ROWS,
    PLANTED,
    SHAPES,
    SPLIT,
    TOWERING,
    TWIN,
)
from conformance.checks.check import Check
from conformance.checks.histories import attention_histories
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal, ones
from conformance.operations.common import OFTEN, plan_probe
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import special
from conformance.sampling import strategies as generation
from conformance.sampling.draws import CaseStrategy
from conformance.sampling.plan.attention import Sizes, adapt_sizes
from conformance.sampling.strategies import ALIKE, EMPTY, FEATURED, LONG, MASKS, ONE_KEY, SHORT, THOUSANDS, TILED
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.dtypes import HALF

SIZES = Sizes(B=2, H=4, G=2, Q=3, K=5, D=6, V=7)
"""Of calls that must be refused."""
LOWEST = -3.4028234663852886e38
"""The lowest float32, with which some fill what is forbidden."""
SPLITTING = ("attention", "attention_logsumexp", "merge_attention")
"""What attention over parts of the keys needs."""


def score_features(declaration: Declaration) -> tuple[str, ...]:
    """What changes scores and softmax, as far as the subject has it."""
    return tuple(feature for feature in ("scale", "softcap", "bias", "sinks") if feature in declaration)


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


def forbidding(case: Case) -> bool:
    """Whether the bias does, by -inf."""
    return bool(np.isneginf(case.inputs["bias"].astype(float)).any())


def probes(declaration: Declaration) -> list[Probe]:
    """Of the output alone, and of both results where the subject returns both."""
    both = probes_with_logsumexp(declaration) if "logsumexp" in declaration else []
    alone = declaration.remove_features("logsumexp")
    return [*probes_of_the_output(alone), *probes_of_kernels(alone), *both]


def probes_of_kernels(declaration: Declaration) -> list[Probe]:
    """Of arguments that the definition lacks, where the subject has them."""
    cases, found = partial(generation.attention_cases, declaration=declaration, others=False), []

    def add(rule: str, title: str, weight: float = 1.0, **given: Any) -> None:
        found.append(agreement(rule, title, "attention", cases(**given), weight))

    for name, rule, words in (("alibi_slopes", "ATT-3", "ALiBi"), ("query_lengths", "MASK-2", "query lengths")):
        if name not in declaration:
            continue
        add(rule, words, focus=(name,), mask="none")
        add(rule, f"{words} beside a mask", focus=(name,), mask="any")
        add(rule, f"{words} beside softcap and scale", 0.5, focus=(name, "softcap", "scale"))
        add(rule, f"{words}, tiles", focus=(name,), plans=TILED)
        add(rule, f"{words}, grouped heads", 0.5, focus=(name,), grouped=True)
        add("ATT-12", f"gradients beside {words}", 1.5, focus=("gradients", name))
    if "query_lengths" in declaration:
        hidden = special.padded_queries(declaration)
        found.append(Probe("MASK-7", "what follows the queries", ("attention",), hidden, TWIN, 0.8))
    return found


def probes_with_logsumexp(declaration: Declaration) -> list[Probe]:
    """Of output and log-sum-exp: a wrong number in either violates the rule."""
    cases = partial(generation.attention_cases, declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    featured = score_features(declaration)

    def both(rule: str, title: str, cases: CaseStrategy, by: Check[Any, Any] = AGREEMENT, weight: float = 1.0) -> Probe:
        return Probe(rule, f"{title} with the log-sum-exp", ("attention",), cases, by, weight)

    def far(*focus: str) -> st.SearchStrategy[Case]:
        return special.far_cases("attention", focus, declaration)

    def make_probe(title: str, plan: str, **given: Any) -> Probe:
        return plan_probe("ATT-14", f"{title} with the log-sum-exp, {plan}", plan, "attention", declaration, **given)

    return [
        both("MASK-7", "hidden", special.hidden_cases("attention", declaration), TWIN, 0.8),
        both("ATT-5", "sinks of -inf", special.absent_sinks("attention", declaration), TWIN, 0.5),
        both("ATT-6", "empty rows", empty(), EMPTY_ROWS),
        both("ATT-6", "empty rows beside sinks", empty(focus=("sinks",)), EMPTY_ROWS, 0.5),
        both("ATT-14", "attention", cases(), weight=1.5),
        both("ATT-14", "every feature", cases(focus=featured, mask="any")),
        both("ATT-14", "grouped heads", cases(grouped=True), weight=0.5),
        both("ATT-14", "scores far from 0", far(), weight=0.4),
        both("ATT-14", "sinks far from 0", far("sinks"), weight=0.4),
        both("ATT-14", "gradients", cases(focus=("gradients",)), weight=2.0),
        make_probe("attention", "features", mask="none"),
        make_probe("attention", "lengths", others=True, rate=OFTEN),
        make_probe("gradients", "lengths", focus=("gradients",), others=True),
        make_probe("gradients", "widths", focus=("gradients",)),
        make_probe("gradients", "heads", mask="none", focus=("gradients",)),
    ]


ALONE = ("attention",)


def agree(rule: str, name: str, cases: CaseStrategy, weight: float = 1.0, level: str = CORE) -> Probe:
    return agreement(rule, name, "attention", cases, weight, level)


def twin(
    rule: str, name: str, cases: CaseStrategy, by: Check[Any, Any] = TWIN, weight: float = 1.0, level: str = CORE
) -> Probe:
    return Probe(rule, name, ALONE, cases, by, weight, level=level)


def probes_of_the_output(declaration: Declaration) -> list[Probe]:
    kinds = (probes_of_masks, probes_of_softmax, probes_of_arrays, sizes_probes)
    return [probe for kind in kinds for probe in kind(declaration)]


def probes_of_masks(declaration: Declaration) -> list[Probe]:
    """Which pairs take part (MASK-1 to MASK-7)."""
    alone = partial(generation.attention_cases, others=False, declaration=declaration)
    return [
        agree("MASK-1", "dense masks", alone(mask="dense")),
        agree("MASK-1", "as many heads as batch elements", special.narrow_masks(declaration), weight=0.8),
        agree(
            "MASK-1",
            "a mask for each of grouped heads",
            alone(mask="dense", grouped=True).filter(has_head_masks),
            weight=0.5,
        ),
        *(
            Probe("MASK-2", f"{kind} and its array", ALONE, alone(mask=kind), DESCRIPTION, weight=0.3)
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
        agree("MASK-4", "window, tiles", alone(mask="window", plans=TILED), 1.0 if declaration.compiled else 3.0),
        *(
            Probe("MASK-5", title, ALONE, special.flat_masks(plans, declaration), SHAPES, weight=0.5)
            for title, plans in (("forms of one mask", None), ("as many queries as batch elements", ALIKE))
        ),
        agree("MASK-6", "combinations", alone(mask="combined")),
        agree("MASK-6", "mask and bias", alone(mask="any", focus=("bias",)), weight=2.0),
        Probe("MASK-7", "hidden NaN and infinity", ALONE, special.planted_cases("hidden", declaration), PLANTED),
        Probe(
            "MASK-7",
            "hidden infinities in the values",
            ALONE,
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.inf, -np.inf)),
            PLANTED,
            weight=0.8,
        ),
        Probe(
            "MASK-7",
            "hidden NaN in thousands of values",
            ALONE,
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.nan,), plans=THOUSANDS),
            PLANTED,
            weight=0.5,
        ),
    ]


def probes_of_softmax(declaration: Declaration) -> list[Probe]:
    """Scores, softmax, and which heads belong together (ATT-1 to ATT-7)."""
    alone = partial(generation.attention_cases, others=False, declaration=declaration)
    far = partial(special.far_cases, "attention", declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    return [
        agree("ATT-1", "scale", alone(focus=("scale",)), weight=1.5),
        agree("ATT-1", "scale 0", alone(focus=("scale",)).map(zero_scale), weight=0.3),
        agree("ATT-1", "scale below 0", alone(focus=("scale",)).map(negate_scale), weight=0.3),
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
        agree("ATT-5", "sinks far from the scores", far(("sinks",)), weight=0.3, level=ROBUST),
        *(agree("ATT-5", f"sinks beside {f}", alone(focus=(f, "sinks")), weight=0.6) for f in ("scale", "softcap")),
        twin("ATT-5", "sinks of -inf", special.absent_sinks("attention", declaration), level=ROBUST),
        Probe("ATT-6", "empty rows", ALONE, empty(), EMPTY_ROWS),
        *(
            Probe("ATT-6", f"empty rows beside {feature}", ALONE, empty(focus=(feature,)), EMPTY_ROWS, weight=0.5)
            for feature in ("bias", "sinks")
        ),
        agree("ATT-7", "grouped heads", alone(grouped=True)),
        agree("ATT-7", "one key head", alone(grouped=True, plans=SHORT[1:2]), weight=0.5),
    ]


def probes_of_arrays(declaration: Declaration) -> list[Probe]:
    """Shapes, dtypes, special values, dropout, gradients, repetition and parts (ATT-8 to ATT-14)."""
    cases = partial(generation.attention_cases, declaration=declaration)
    alone = partial(cases, others=False)
    far = partial(special.far_cases, "attention", declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    featured = score_features(declaration)
    # Where no gradient is asked for, many libraries call another function: that of inference, of `jax.custom_vjp`.
    without_gradients = partial(cases, gradients=False, plans=FEATURED[:1])
    return [
        agree("ATT-8", "every feature", cases(focus=featured, mask="any")),
        agree("ATT-8", "without gradients", without_gradients(), weight=0.8),
        agree("ATT-8", "without gradients, every feature", without_gradients(focus=featured), weight=0.8),
        *(agree("ATT-8", f"{adapt_sizes(s, declaration).K} keys", cases(plans=(s,)), weight=0.5) for s in LONG),
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
            ALONE,
            special.planted_cases("attended", declaration),
            PLANTED,
            weight=2.0,
        ),
        Probe(
            "ATT-10",
            "an attended NaN in a value",
            ALONE,
            special.planted_cases("attended", declaration, ("value",)),
            PLANTED,
        ),
        Probe(
            "ATT-10",
            "an attended NaN that is dropped",
            ALONE,
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
        *(
            Probe("ATT-6", f"empty rows as {mode}", ALONE, empty(modes=(mode,)), EMPTY_ROWS, weight=0.8)
            for mode in ("mean", "nan")
            if "empty_rows" in declaration
        ),
        *(
            Probe("ATT-13", f"attention, {title}", ALONE, drawn, DETERMINISM)
            for title, drawn in (
                ("bias and mask", cases(focus=("bias",), mask="dense").filter(forbidding)),
                ("dropout and mask", alone(focus=("dropout",), mask="dense")),
                ("lengths", cases(mask="lengths")),
                ("equal widths", cases(plans=LONG[-1:])),
                ("one key", cases(mask="none", others=False, plans=ONE_KEY)),
            )
        ),
        Probe("ATT-14", "split and merged", SPLITTING, special.splits(declaration), SPLIT),
    ]


def sizes_probes(declaration: Declaration) -> list[Probe]:
    """Those at the sizes of the plan."""

    def make_probe(rule: str, title: str, plan: str, weight: float = 1.0, **given: Any) -> Probe:
        return plan_probe(rule, f"{title}, {plan}", plan, "attention", declaration, weight, **given)

    gradients = ("gradients",)
    return [
        make_probe("MASK-1", "dense", "lengths", mask="dense", large=True),
        make_probe("MASK-1", "dense", "features", mask="dense"),
        *(make_probe("MASK-2", kind, "lengths", mask=kind) for kind in ("lengths", "padding", "segments")),
        make_probe("MASK-3", "causal", "lengths", mask="causal", large=True),
        make_probe("MASK-4", "window", "lengths", mask="window", large=True),
        make_probe("MASK-6", "combined", "lengths", 0.5, mask="combined"),
        *(make_probe("ATT-1", "scale", plan, focus=("scale",)) for plan in ("widths", "features")),
        make_probe("ATT-1", "default scale", "widths", mask="none"),
        make_probe("ATT-2", "softcap", "features", focus=("softcap",)),
        make_probe("ATT-3", "bias", "features", 3.25, focus=("bias",)),
        make_probe("ATT-5", "softmax", "features", mask="none"),
        make_probe("ATT-5", "sinks", "features", focus=("sinks",)),
        make_probe("ATT-7", "grouped heads", "heads", grouped=True),
        make_probe("ATT-8", "everything", "everything", others=True, rate=OFTEN, large=True),
        make_probe("ATT-9", "16-bit inputs", "features", dtypes=HALF),
        make_probe("ATT-11", "dropout", "features", focus=("dropout",)),
        *(make_probe("ATT-12", "gradients", plan, focus=gradients, others=True) for plan in ("features", "lengths")),
        make_probe("ATT-12", "gradients", "heads", mask="none", focus=gradients, others=True),
        make_probe("ATT-12", "gradients", "widths", focus=gradients),
        make_probe(
            "ATT-12", "gradients of a shared bias", "heads", mask="none", focus=(*gradients, "bias"), shared_bias=True
        ),
        *(
            make_probe("ATT-12", f"gradients beside {name}", "features", weight, focus=(*gradients, name))
            for name, weight in (("bias", 2.0), ("sinks", 2.0), ("softcap", 0.5))
        ),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    """Some arguments of a call changed."""
    B, H, G, Q, K, D, V = adapt_sizes(SIZES, declaration)
    names = ("query", "key", "value", "bias", "sinks")

    def make_refusal(rule: str, title: str, error: Kind, **changes: Any) -> Refusal:
        inputs: dict[str, Any] = {"query": array(B, H, Q, D), "key": array(B, G, K, D), "value": array(B, G, K, V)}
        inputs |= {name: value for name, value in changes.items() if name in names}
        options = {name: value for name, value in changes.items() if name not in names}
        return array.refusal(rule, title, error, "attention", inputs, **options)

    # A function may look at the dtype of one form only. Who takes no array of rank 2 may give that as the reason.
    for form, shape, error in (("", (B, H, Q, K), TypeError), (" [queries, keys]", (Q, K), Exception)):
        yield make_refusal("MASK-1", f"a mask{form} of 0 and 1", error, mask=np.ones(shape, np.int64))
        yield make_refusal("MASK-1", f"an additive mask{form}", error, mask=np.zeros(shape, np.float32))
    yield make_refusal("MASK-1", "an additive padding mask", TypeError, mask=KeyPadding(np.zeros((B, K), np.float32)))
    # Who takes no other number of keys than of queries may give that as the reason, by an error of its own.
    more, refusing = (K, ValueError) if "cross" in declaration else (K + 2, Exception)
    keys = {"key": array(B, G, more, D), "value": array(B, G, more, V)}
    if declaration.convention("causal") == "explicit":
        yield make_refusal("MASK-3", "causal without offset, Q != K", refusing, mask=Causal(), **keys)
    yield make_refusal("MASK-3", "a fractional offset", TypeError, mask=Causal(1.5))
    yield make_refusal("MASK-3", "offsets for another batch", ValueError, mask=Causal(np.arange(B + 1)))
    yield make_refusal("MASK-4", "a window without offset, Q != K", refusing, mask=SlidingWindow(1, 1), **keys)
    yield make_refusal("MASK-4", "a negative window", ValueError, mask=SlidingWindow(-1, 1, 0))
    yield make_refusal("MASK-5", "a mask of rank 1", ValueError, mask=ones(K))
    yield make_refusal("MASK-5", "a mask of rank 3", ValueError, mask=ones(B, Q, K))
    yield make_refusal("MASK-5", "a mask [batch, keys]", ValueError, mask=ones(B, K))
    yield make_refusal("MASK-5", "a mask [4, 1, 3, 5] for batch 2", ValueError, mask=ones(2 * B, 1, Q, K))
    yield make_refusal("MASK-5", "lengths beyond K", ValueError, mask=KeyLengths(np.array([K, K + 1])))
    yield make_refusal("MASK-5", "negative lengths", ValueError, mask=KeyLengths(np.array([-1, 2])))
    ids = Segments(np.zeros((B, Q + 2), int), np.zeros((B, K), int))
    yield make_refusal("MASK-5", "ids of another length", ValueError, mask=ids)
    yield make_refusal("ATT-1", "scale NaN", ValueError, scale=float("nan"))
    yield make_refusal("ATT-1", "scale infinite", ValueError, scale=float("inf"))
    yield make_refusal("ATT-1", "width 0", ValueError, query=array(B, H, Q, 0), key=array(B, G, K, 0))
    yield make_refusal("ATT-2", "softcap 0", ValueError, softcap=0.0)
    yield make_refusal("ATT-2", "softcap negative", ValueError, softcap=-1.0)
    yield make_refusal("ATT-3", "a bias of integers", TypeError, bias=np.zeros((B, H, Q, K), np.int32))
    yield make_refusal("ATT-3", "a bias [queries, keys] of integers", Exception, bias=np.zeros((Q, K), np.int32))
    yield make_refusal("ATT-3", "a bias of rank 3", ValueError, bias=array(H, Q, K))
    yield make_refusal("ATT-5", "sinks for the key heads", ValueError, sinks=array(H // 2))
    yield make_refusal("ATT-6", "an unknown kind of empty row", ValueError, empty_rows="one")
    refusing, misfit = ValueError if "gqa" in declaration else Exception, {"key": array(B, 3, K, D)}
    yield make_refusal("ATT-7", "4 query heads, 3 key heads", refusing, **misfit, value=array(B, 3, K, V))
    yield make_refusal("ATT-8", "query of rank 3", ValueError, query=array(B, Q, D))
    yield make_refusal("ATT-8", "widths that differ", ValueError, key=array(B, G, K, D - 2))
    yield make_refusal("ATT-8", "values for other keys", ValueError, value=array(B, G, K - 1, V))
    yield make_refusal("ATT-8", "batches that differ", ValueError, key=array(1, G, K, D), value=array(1, G, K, V))
    yield make_refusal("ATT-9", "integers", TypeError, query=array(B, H, Q, D, dtype="int32"))
    yield make_refusal("ATT-9", "mixed dtypes", TypeError, value=array(B, G, K, V, dtype=array.another))
    yield make_refusal("ATT-11", "rate 1", ValueError, dropout_keep=ones(B, H, Q, K), dropout_rate=1.0)
    yield make_refusal("ATT-11", "a rate without a keep mask", ValueError, dropout_rate=0.5)
    another = {"dropout_keep": ones(Q, K), "dropout_rate": 0.5}
    yield make_refusal("ATT-11", "a keep mask of another shape", ValueError, **another)


OPERATION = JudgedOperation("attention", probes, refusals, attention_histories)
