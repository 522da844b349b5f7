"""Attention: every query's mean of the values, weighted by how well their keys fit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from conformance.cases.declaration import Declaration, Sizes, adapt_sizes
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
    Check,
    Probe,
    make_probe,
)
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal, no_refusals, ones
from conformance.operations import JudgedOperation
from conformance.sampling import special
from conformance.sampling import strategies as generation
from conformance.sampling.draws import CaseStrategy, Rows
from conformance.sampling.histories import attention_histories
from conformance.sampling.plan.attention import has_any_sizes, has_grouped_heads, rows_of_attention
from conformance.sampling.strategies import (
    ALIKE,
    DTYPES,
    EMPTY,
    FEATURED,
    LONG,
    MASKS,
    ONE_KEY,
    SHORT,
    THOUSANDS,
    TILED,
)
from specification import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.dtypes import HALF

SIZES = Sizes(B=2, H=4, G=2, Q=3, K=5, D=6, V=7)
"""Of calls that must be refused."""
LOWEST = -3.4028234663852886e38
"""The lowest float32, with which some fill what is forbidden."""
SPLITTING = ("attention", "attention_logsumexp", "merge_attention")
"""What attention over parts of the keys needs."""


probe = partial(make_probe, "attention")


def score_features(declaration: Declaration) -> tuple[str, ...]:
    """What changes scores and softmax, as far as the subject has it."""
    return tuple(feature for feature in ("scale", "softcap", "bias", "sinks") if feature in declaration)


# --- at the sizes of a plan -------------------------------------------------------------------------------------------

OFTEN = 3
"""At planned sizes one case in so many has each feature."""


def plan_probe(
    operation: str,
    declaration: Declaration,
    rule: str,
    title: str,
    plan: str,
    weight: float = 1.0,
    others: bool = False,
    dtypes: tuple[str, ...] = DTYPES,
    large: bool = False,
    **given: Any,
) -> Probe:
    """A probe with one case for each row of a plan; without rows where the subject lacks what all of them need."""
    name, rows = f"{title}, {plan}", Rows(tuple)
    takes = generation.takes_mask(given.get("mask", "maybe"), declaration)
    takes = takes and not set(dtypes).isdisjoint(declaration.dtypes)
    if takes and set(given.get("focus", ())) <= declaration.features:
        cases = partial(generation.attention_cases, operation, others=others, declaration=declaration, **given)
        wanted = has_grouped_heads if given.get("grouped") else has_any_sizes
        rows = rows_of_attention(cases, plan, name, declaration, wanted, dtypes, large)
    return make_probe(operation, rule, name, rows, weight)


# --- attention --------------------------------------------------------------------------------------------------------


def attention_probes(declaration: Declaration) -> list[Probe]:
    """Of the output alone, and of both results where the subject returns both."""
    kinds = (mask_probes, softmax_probes, array_probes, size_probes, kernel_probes)
    output_alone = declaration.remove_features("logsumexp")
    both = logsumexp_probes(declaration) if "logsumexp" in declaration else []
    return [*(one for kind in kinds for one in kind(output_alone)), *both]


def kernel_probes(declaration: Declaration) -> list[Probe]:
    """Of arguments that the definition lacks, where the subject has them."""
    cases, probes = partial(generation.attention_cases, declaration=declaration, others=False), list[Probe]()
    for name, rule, words in (("alibi_slopes", "ATT-3", "ALiBi"), ("query_lengths", "MASK-2", "query lengths")):
        if name in declaration:
            beside = cases(focus=(name, "softcap", "scale"))
            probes += [
                probe(rule, words, cases(focus=(name,), mask="none")),
                probe(rule, f"{words} beside a mask", cases(focus=(name,), mask="any")),
                probe(rule, f"{words} beside softcap and scale", beside, 0.5),
                probe(rule, f"{words}, tiles", cases(focus=(name,), plans=TILED)),
                probe(rule, f"{words}, grouped heads", cases(focus=(name,), grouped=True), 0.5),
                probe("ATT-12", f"gradients beside {words}", cases(focus=("gradients", name)), 1.5),
            ]
    if "query_lengths" in declaration:
        padded = special.padded_queries(declaration)
        probes.append(probe("MASK-7", "what follows the queries", padded, 0.8, check=TWIN))
    return probes


def logsumexp_probes(declaration: Declaration) -> list[Probe]:
    """Of output and log-sum-exp: a wrong number in either violates the rule."""
    cases = partial(generation.attention_cases, declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    featured = score_features(declaration)

    def both(rule: str, title: str, cases: CaseStrategy, weight: float = 1.0, check: Check = AGREEMENT) -> Probe:
        return probe(rule, f"{title} with the log-sum-exp", cases, weight, check=check)

    def plan_saved(title: str, plan: str, **given: Any) -> Probe:
        return plan_probe("attention", declaration, "ATT-14", f"{title} with the log-sum-exp", plan, **given)

    far, far_sinks = (special.far_cases("attention", focus, declaration) for focus in ((), ("sinks",)))
    return [
        both("MASK-7", "hidden", special.hidden_cases("attention", declaration), 0.8, TWIN),
        both("ATT-5", "sinks of -inf", special.absent_sinks("attention", declaration), 0.5, TWIN),
        both("ATT-6", "empty rows", empty(), check=EMPTY_ROWS),
        both("ATT-6", "empty rows beside sinks", empty(focus=("sinks",)), 0.5, EMPTY_ROWS),
        both("ATT-14", "attention", cases(), weight=1.5),
        both("ATT-14", "every feature", cases(focus=featured, mask="any")),
        both("ATT-14", "grouped heads", cases(grouped=True), weight=0.5),
        both("ATT-14", "scores far from 0", far, weight=0.4),
        both("ATT-14", "sinks far from 0", far_sinks, weight=0.4),
        both("ATT-14", "gradients", cases(focus=("gradients",)), weight=2.0),
        plan_saved("attention", "features", mask="none"),
        plan_saved("attention", "lengths", others=True, rate=OFTEN),
        plan_saved("gradients", "lengths", focus=("gradients",), others=True),
        plan_saved("gradients", "widths", focus=("gradients",)),
        plan_saved("gradients", "heads", mask="none", focus=("gradients",)),
    ]


def mask_probes(declaration: Declaration) -> list[Probe]:
    """Which pairs take part (MASK-1 to MASK-7)."""
    alone = partial(generation.attention_cases, others=False, declaration=declaration)
    return [
        probe("MASK-1", "dense masks", alone(mask="dense")),
        probe("MASK-1", "as many heads as batch elements", special.narrow_masks(declaration), weight=0.8),
        probe(
            "MASK-1",
            "a mask for each of grouped heads",
            alone(mask="dense", grouped=True).filter(special.has_head_masks),
            weight=0.5,
        ),
        *(
            probe("MASK-2", f"{kind} and its array", alone(mask=kind), weight=0.3, check=DESCRIPTION)
            for kind in (*MASKS, "combined")
        ),
        *(probe("MASK-2", kind, alone(mask=kind), weight=0.4) for kind in MASKS if "structured" in declaration),
        *(
            probe("MASK-2", f"{kind}, many keys", alone(mask=kind, plans=LONG), weight=1.5)
            for kind in ("lengths", "padding", "segments")
        ),
        probe("MASK-3", "causal", alone(mask="causal"), weight=1.5),
        probe("MASK-3", "causal, many keys", alone(mask="causal", plans=LONG), weight=0.5),
        probe("MASK-4", "window", alone(mask="window").filter(special.has_narrow_window), weight=2.0),
        probe("MASK-4", "window, many keys", alone(mask="window", plans=LONG)),
        probe("MASK-4", "window, tiles", alone(mask="window", plans=TILED), 1.0 if declaration.compiled else 3.0),
        *(
            probe("MASK-5", title, special.flat_masks(plans, declaration), weight=0.5, check=SHAPES)
            for title, plans in (("forms of one mask", None), ("as many queries as batch elements", ALIKE))
        ),
        probe("MASK-6", "combinations", alone(mask="combined")),
        probe("MASK-6", "mask and bias", alone(mask="any", focus=("bias",)), weight=2.0),
        probe("MASK-7", "hidden NaN and infinity", special.planted_cases("hidden", declaration), check=PLANTED),
        probe(
            "MASK-7",
            "hidden infinities in the values",
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.inf, -np.inf)),
            weight=0.8,
            check=PLANTED,
        ),
        probe(
            "MASK-7",
            "hidden NaN in thousands of values",
            special.planted_cases("hidden", declaration, ("value",), poisons=(np.nan,), plans=THOUSANDS),
            weight=0.5,
            check=PLANTED,
        ),
    ]


def softmax_probes(declaration: Declaration) -> list[Probe]:
    """Scores, softmax, and which heads belong together (ATT-1 to ATT-7)."""
    alone = partial(generation.attention_cases, others=False, declaration=declaration)
    far = partial(special.far_cases, "attention", declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    return [
        probe("ATT-1", "scale", alone(focus=("scale",)), weight=1.5),
        probe("ATT-1", "scale 0", alone(focus=("scale",)).map(special.zero_scale), weight=0.3),
        probe("ATT-1", "scale below 0", alone(focus=("scale",)).map(special.negate_scale), weight=0.3),
        probe("ATT-1", "default scale", alone(mask="none")),
        probe("ATT-2", "softcap", alone(focus=("softcap",))),
        probe("ATT-2", "softcap of scaled scores", alone(focus=("scale", "softcap")), weight=0.5),
        probe("ATT-3", "bias", alone(focus=("bias",))),
        probe("ATT-3", "bias beside 16-bit inputs", alone(focus=("bias",), dtypes=HALF), weight=0.8),
        probe("ATT-3", "bias after softcap", alone(focus=("bias", "softcap")), weight=0.5),
        *(
            probe(
                "ATT-4",
                f"allowed scores of {level:g}",
                special.sunken_cases(level, declaration),
                weight=0.4,
                check=TWIN,
            )
            for level in (-1e5, -2e9, -1e21, LOWEST)
        ),
        probe("ATT-4", "allowed products far below 0", special.deep_cases(declaration), weight=0.8, check=TWIN),
        probe("ATT-5", "softmax", alone(mask="none"), weight=1.5),
        probe("ATT-5", "sinks", alone(focus=("sinks",))),
        probe("ATT-5", "sinks far from the scores", far(("sinks",)), weight=0.3, level=ROBUST),
        *(probe("ATT-5", f"sinks beside {f}", alone(focus=(f, "sinks")), weight=0.6) for f in ("scale", "softcap")),
        probe("ATT-5", "sinks of -inf", special.absent_sinks("attention", declaration), level=ROBUST, check=TWIN),
        probe("ATT-6", "empty rows", empty(), check=EMPTY_ROWS),
        *(
            probe("ATT-6", f"empty rows beside {feature}", empty(focus=(feature,)), weight=0.5, check=EMPTY_ROWS)
            for feature in ("bias", "sinks")
        ),
        probe("ATT-7", "grouped heads", alone(grouped=True)),
        probe("ATT-7", "one key head", alone(grouped=True, plans=SHORT[1:2]), weight=0.5),
    ]


def array_probes(declaration: Declaration) -> list[Probe]:
    """Shapes, dtypes, special values, dropout, gradients, repetition and parts (ATT-8 to ATT-14)."""
    cases = partial(generation.attention_cases, declaration=declaration)
    alone = partial(cases, others=False)
    far = partial(special.far_cases, "attention", declaration=declaration)
    empty = partial(special.empty_row_cases, declaration=declaration)
    featured = score_features(declaration)
    # Where no gradient is asked for, many libraries call another function: that of inference, of `jax.custom_vjp`.
    without_gradients = partial(cases, gradients=False, plans=FEATURED[:1])
    return [
        probe("ATT-8", "every feature", cases(focus=featured, mask="any")),
        probe("ATT-8", "without gradients", without_gradients(), weight=0.8),
        probe("ATT-8", "without gradients, every feature", without_gradients(focus=featured), weight=0.8),
        *(probe("ATT-8", f"{adapt_sizes(s, declaration).K} keys", cases(plans=(s,)), weight=0.5) for s in LONG),
        probe("ATT-8", "one query", cases(plans=SHORT[-1:]), weight=0.5),
        probe("ATT-8", "one query, every feature", cases(focus=featured, mask="any", plans=SHORT[-1:]), weight=0.8),
        probe("ATT-8", "one key", cases(plans=ONE_KEY), weight=0.3),
        probe("ATT-8", "lengths of 0", cases(focus=("empty",), plans=EMPTY), weight=0.5),
        *(
            probe("ATT-8", f"{axis} = 0", cases(focus=("empty",), plans=(s,)), weight=0.3)
            for axis, s in zip("BHQKV", EMPTY, strict=True)
        ),
        probe("ATT-9", "16-bit inputs", alone(dtypes=HALF), weight=1.5),
        probe("ATT-9", "float32 inputs", alone(dtypes=("float32",)), weight=0.5),
        probe("ATT-9", "float64 inputs", alone(dtypes=("float64",)), weight=0.3),
        probe("ATT-10", "an attended NaN", special.planted_cases("attended", declaration), weight=2.0, check=PLANTED),
        probe(
            "ATT-10",
            "an attended NaN in a value",
            special.planted_cases("attended", declaration, ("value",)),
            check=PLANTED,
        ),
        probe(
            "ATT-10",
            "an attended NaN that is dropped",
            special.planted_cases("attended", declaration, ("value",), focus=("dropout",)),
            weight=0.5,
            check=PLANTED,
        ),
        probe("ATT-10", "scores of -inf", special.infinite_scores(declaration), weight=0.5, check=TWIN),
        *(
            probe("ATT-10", f"towering logits{of}", special.towering_cases(scales, declaration), check=TOWERING)
            for of, scales in (("", (2.0**14, 2.0**100)), (" of a negative scale", (-(2.0**14), -(2.0**40))))
        ),
        probe("ATT-10", "scores far from 0", far(), weight=0.5),
        probe("ATT-11", "dropout", alone(focus=("dropout",))),
        probe("ATT-12", "gradients", cases(focus=("gradients",)), weight=2.0),
        probe("ATT-12", "gradients of bias and sinks", alone(focus=("gradients", "bias", "softcap", "sinks"))),
        *(
            probe("ATT-12", f"gradients beside {name}", alone(focus=("gradients", name)), weight=0.4)
            for name in ("bias", "sinks", "softcap")
        ),
        *(
            probe("ATT-6", f"empty rows as {mode}", empty(modes=(mode,)), weight=0.8, check=EMPTY_ROWS)
            for mode in ("mean", "nan")
            if "empty_rows" in declaration
        ),
        *(
            probe("ATT-13", f"attention, {title}", drawn, check=DETERMINISM)
            for title, drawn in (
                ("bias and mask", cases(focus=("bias",), mask="dense").filter(special.has_forbidding_bias)),
                ("dropout and mask", alone(focus=("dropout",), mask="dense")),
                ("lengths", cases(mask="lengths")),
                ("equal widths", cases(plans=LONG[-1:])),
                ("one key", cases(mask="none", others=False, plans=ONE_KEY)),
            )
        ),
        Probe("ATT-14", "split and merged", SPLITTING, special.splits(declaration), SPLIT),
    ]


def size_probes(declaration: Declaration) -> list[Probe]:
    """Those at the sizes of the plan."""

    planned = partial(plan_probe, "attention", declaration)
    gradients = ("gradients",)
    return [
        planned("MASK-1", "dense", "lengths", mask="dense", large=True),
        planned("MASK-1", "dense", "features", mask="dense"),
        *(planned("MASK-2", kind, "lengths", mask=kind) for kind in ("lengths", "padding", "segments")),
        planned("MASK-3", "causal", "lengths", mask="causal", large=True),
        planned("MASK-4", "window", "lengths", mask="window", large=True),
        planned("MASK-6", "combined", "lengths", 0.5, mask="combined"),
        *(planned("ATT-1", "scale", plan, focus=("scale",)) for plan in ("widths", "features")),
        planned("ATT-1", "default scale", "widths", mask="none"),
        planned("ATT-2", "softcap", "features", focus=("softcap",)),
        planned("ATT-3", "bias", "features", 3.25, focus=("bias",)),
        planned("ATT-5", "softmax", "features", mask="none"),
        planned("ATT-5", "sinks", "features", focus=("sinks",)),
        planned("ATT-7", "grouped heads", "heads", grouped=True),
        planned("ATT-8", "everything", "everything", others=True, rate=OFTEN, large=True),
        planned("ATT-9", "16-bit inputs", "features", dtypes=HALF),
        planned("ATT-11", "dropout", "features", focus=("dropout",)),
        *(planned("ATT-12", "gradients", plan, focus=gradients, others=True) for plan in ("features", "lengths")),
        planned("ATT-12", "gradients", "heads", mask="none", focus=gradients, others=True),
        planned("ATT-12", "gradients", "widths", focus=gradients),
        planned(
            "ATT-12", "gradients of a shared bias", "heads", mask="none", focus=(*gradients, "bias"), shared_bias=True
        ),
        *(
            planned("ATT-12", f"gradients beside {name}", "features", weight, focus=(*gradients, name))
            for name, weight in (("bias", 2.0), ("sinks", 2.0), ("softcap", 0.5))
        ),
    ]


def attention_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    """Some arguments of a call changed."""
    B, H, G, Q, K, D, V = adapt_sizes(SIZES, declaration)
    names = ("query", "key", "value", "bias", "sinks")

    def make_refusal(rule: str, title: str, error: Kind, **changes: object) -> Refusal:
        inputs: dict[str, Any] = {"query": array(B, H, Q, D), "key": array(B, G, K, D), "value": array(B, G, K, V)}
        inputs |= {name: value for name, value in changes.items() if name in names}
        options = {name: value for name, value in changes.items() if name not in names}
        return array.refusal("attention", rule, title, error, inputs, **options)

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


ATTENTION = JudgedOperation("attention", attention_probes, attention_refusals, attention_histories)


# --- its companions ---------------------------------------------------------------------------------------------------


def hidden_probe(operation: str, declaration: Declaration) -> Probe:
    cases = special.hidden_cases(operation, declaration)
    return make_probe(operation, "MASK-7", f"hidden in {operation}", cases, 0.8, check=TWIN)


def attention_weights_probes(declaration: Declaration) -> list[Probe]:
    name = "attention_weights"
    probe, planned = partial(make_probe, name), partial(plan_probe, name, declaration, "ATT-14", "weights")
    cases = partial(generation.attention_cases, name, declaration=declaration)
    empty = partial(special.empty_row_cases, name, declaration=declaration)
    featured = score_features(declaration)
    return [
        hidden_probe(name, declaration),
        probe("ATT-5", "weights", cases(others=False)),
        probe("ATT-5", "weights beside sinks", cases(others=False, focus=("sinks",)), weight=0.5),
        probe("ATT-6", "empty rows of weights", empty(), check=EMPTY_ROWS),
        *(
            probe("ATT-6", f"empty rows as {mode}", empty(modes=(mode,)), 0.8, check=EMPTY_ROWS)
            for mode in ("mean", "nan")
            if "empty_rows" in declaration
        ),
        probe("ATT-14", "weights", cases(), weight=1.5),
        probe("ATT-14", "weights, every feature", cases(focus=featured, mask="any"), weight=0.5),
        planned("features", mask="none", large=True),
        planned("lengths", others=True, rate=OFTEN, large=True),
    ]


ATTENTION_WEIGHTS = JudgedOperation("attention_weights", attention_weights_probes, no_refusals, attention_histories)


def attention_logsumexp_probes(declaration: Declaration) -> list[Probe]:
    name = "attention_logsumexp"
    probe, planned = partial(make_probe, name), partial(plan_probe, name, declaration, "ATT-14", "log-sum-exp")
    cases = partial(generation.attention_cases, name, declaration=declaration)
    empty = partial(special.empty_row_cases, name, declaration=declaration)
    featured = score_features(declaration)
    sinks, far = special.absent_sinks(name, declaration), partial(special.far_cases, name, declaration=declaration)
    return [
        hidden_probe(name, declaration),
        probe("ATT-5", "log-sum-exp beside sinks of -inf", sinks, 0.5, ROBUST, TWIN),
        probe("ATT-6", "empty rows of log-sum-exp", empty(), check=EMPTY_ROWS),
        probe("ATT-6", "empty rows with a sink", empty(focus=("sinks",)), 0.5, check=EMPTY_ROWS),
        probe("ATT-14", "log-sum-exp", cases(), weight=1.5),
        probe("ATT-14", "log-sum-exp, every feature", cases(focus=featured, mask="any"), weight=0.5),
        probe("ATT-14", "log-sum-exp far from 0", far(), 0.4, ROBUST),
        probe("ATT-14", "log-sum-exp of sinks far from 0", far(("sinks",)), 0.4, ROBUST),
        planned("features", mask="none", large=True),
        planned("lengths", others=True, rate=OFTEN, large=True),
    ]


ATTENTION_LOGSUMEXP = JudgedOperation(
    "attention_logsumexp", attention_logsumexp_probes, no_refusals, attention_histories
)


MANY_PARTS = (5, 8, 9, 16, 17, 33, 64, 65, 129)


def merge_attention_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "merge_attention")
    merges = partial(generation.merge_cases, declaration=declaration)
    counts = (9, 65) if declaration.compiled else MANY_PARTS  # where shapes are compiled, two stand for all
    return [
        hidden_probe("merge_attention", declaration),
        probe("ATT-14", "merge", merges(), weight=1.5),
        probe("ATT-14", "merge of far parts", merges(("float32", *HALF), (2, 3, 4), 100.0), 0.5, ROBUST),
        probe("ATT-14", "merge in 16 bits", merges(HALF, (3, 4)), weight=0.5),
        probe("ATT-14", "merge, sizes", rows_of_attention(merges, "merges", "merge", declaration, large=True)),
        probe("ATT-14", "merge of many parts", Rows(lambda: tuple(merges(parts=(n,), plans=SHORT) for n in counts))),
    ]


def merge_attention_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    parts = {"outputs[0]": array(2, 4, 3, 7), "logsumexps[0]": array(2, 4, 5)}
    yield array.refusal("merge_attention", "ATT-14", "parts that do not match", ValueError, parts)


MERGE_ATTENTION = JudgedOperation("merge_attention", merge_attention_probes, merge_attention_refusals)
