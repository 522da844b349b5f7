"""The softmax gone wrong: sums, maxima, overflow and sinks; log-sum-exps (ATT-5, ATT-10, ATT-14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION
from conformance.mistakes.attention_steps import AttentionSteps, row_maximum
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_with
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.mistake import (
    ATTENTION,
    Change,
    Changed,
    Prediction,
    Topic,
    add_bounds,
    name_entries,
    results_of_steps,
)
from conformance.mistakes.scores import HEAD_ORDERS, keep_bits, order_heads
from specification.dtypes import compute_dtype_name

WEIGHED, LOGSUMEXP = ATTENTION[:2], ATTENTION[2:]
TOPIC = Topic("softmax", "ATT-5")
entry, entries = TOPIC.entry, TOPIC.entries

# --- weights by another quotient --------------------------------------------------------------------------------------


PullBack = Callable[[np.ndarray], tuple[np.ndarray, "np.ndarray | None"]]
"""From the gradient of the weights to those of the scores and of the sinks [B, H, Q, 1]."""


class Weights(NamedTuple):
    """Weights before dropout, and what takes their gradient further."""

    weights: np.ndarray
    pull_back: PullBack | None = None


def weigh(weights: Callable[..., Weights | np.ndarray | None]) -> Change:
    """Take `weights(steps, exponentials, total, sink, **values)`, from the sink's exponential or 0 [B, H, Q, 1].

    None where there is no place for the mistake. Gradients are left out where a function returns the weights alone:
    they depend on whether an implementation takes those of the maximum into account.
    """

    def change(call: Call, **values: object) -> Results | None:
        s = call.steps
        exponentials, total, maximum = s.exponentials(call.forward.scores)
        sink = np.zeros_like(total) if s.sinks is None else np.exp(s.sinks - maximum)
        found = weights(s, exponentials, total, sink, **values)
        if found is None:
            return None
        return results_of_weights(call, found if isinstance(found, Weights) else Weights(found))

    return change


def results_of_weights(call: Call, found: Weights) -> Results:
    """The output, and gradients where they can be predicted; what a log-sum-exp beside it holds is left open."""
    steps, attention = call.steps, call.case.operation == "attention"
    results = {"output": steps.weigh_values(found.weights) if attention else steps.fill_empty_rows(found.weights)}
    if found.pull_back is None or not call.case.cotangents or call.case.special or steps.with_logsumexp:
        return results
    bar, value = call.cotangent(), None
    if attention:
        value = (steps.fill_empty_rows(found.weights) * steps.factor).swapaxes(-1, -2) @ bar
        bar = bar @ steps.values.swapaxes(-1, -2) * steps.factor
    scores, sinks = found.pull_back(bar)
    gradients = steps.change(sinks=None).pull_back_scores(scores, value, scores)
    return results | steps.sum_gradients(gradients._replace(sinks=sinks), call.case.inputs)


def divide(numerators: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.asarray(numerators / np.where(total == 0, 1, total))


def divide_by_sums(numerators: np.ndarray, exponentials: np.ndarray, total: np.ndarray, sink: np.ndarray) -> Weights:
    """Weights numerators / total, where the total is made of exponentials and the sink's."""
    weights = divide(numerators, total)

    def pull_back(bar: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        axes = tuple(axis for axis in range(4) if total.shape[axis] == 1)
        total_bar = -divide(np.sum(bar * weights, axis=axes, keepdims=True), total)
        return weights * bar + exponentials * total_bar, sink * total_bar if sink.any() else None

    return Weights(weights, pull_back)


AXES = {"queries": (-2,), "heads": (1,), "the batch": (0,), "all pairs of queries and keys": (-2, -1)}


def normalize_along(call: Call, axes: str) -> list[Changed]:
    """0 where nothing is allowed along these axes, or NaN."""
    scores, along = call.forward.scores, AXES[axes]
    exponentials = np.exp(scores - np.maximum(scores.max(axis=along, keepdims=True, initial=-np.inf), -1e30))
    total = exponentials.sum(axis=along, keepdims=True)
    found = divide_by_sums(exponentials, exponentials, total, np.zeros(1))
    zeros = found if call.steps.sinks is None else Weights(found.weights)
    return [results_of_weights(call, way) for way in (zeros, Weights(exponentials / total))]


def mask_weights(
    s: AttentionSteps, exponentials: np.ndarray, total: np.ndarray, sink: np.ndarray, number: float
) -> Any:
    """The weights of all keys, and a number for those that the mask forbids."""
    if s.visible.all():
        return None
    seen = s.change(visible=np.ones_like(s.visible))
    exponentials, total, maximum = seen.exponentials(seen.masked_scores())
    sink = np.zeros(1) if s.sinks is None else np.exp(s.sinks - maximum)
    found = divide_by_sums(np.where(s.visible, exponentials, 0), exponentials, total, sink)
    return found if number == 0 else found._replace(weights=np.where(s.visible, found.weights, number))


def add_sink_of_zero(call: Call) -> Case | None:
    if "sinks" in call.case.inputs:
        return None
    case = call.case
    sinks = np.zeros(case.inputs["query"].shape[1], compute_dtype_name(case.dtype))
    options = {name: value for name, value in case.options.items() if name != "empty_rows"}  # sinks leave no choice
    constants = (*case.constants, "sinks")
    return replace(case, inputs=case.inputs | {"sinks": sinks}, options=options, constants=constants)


def take_base_2(call: Call) -> list[Changed]:
    """exp2 of scores and sinks that log2(e) has not multiplied."""
    s, ln2, name = call.steps, np.log(2), gradient_name("sinks")
    sinks = None if s.sinks is None else s.sinks * ln2
    found = results_of_steps(call, s.change(score=lambda t, p: (t.cap(p) + t.bias) * ln2, sinks=sinks), "both")
    return [results | ({name: results[name] * ln2} if name in results else {}) for results in found]


def sum_first_keys(s: AttentionSteps, exponentials: np.ndarray, total: np.ndarray, sink: np.ndarray, first: int) -> Any:
    """All weights are divided by the sum of the first ones, where there is any."""
    if first >= s.sizes[-1]:
        return None
    summed = np.where(np.arange(s.sizes[-1]) < first, exponentials, 0)
    summed = np.where(summed.any(axis=-1, keepdims=True), summed, exponentials)
    return divide_by_sums(exponentials, summed, summed.sum(axis=-1, keepdims=True) + sink, sink)


QUOTIENTS = (
    entry("along-other-axes", "the softmax runs over {axes}, not keys", normalize_along, operations=WEIGHED,
          axes=tuple(AXES)),
    *entries(weigh,
             ("sum-not-set-back", "the sum of the exponentials is not set back from row to row",
              lambda s, e, total, sink: divide(e, np.cumsum(total, axis=-2))),
             ("forbidden-counted", "forbidden keys stay in the softmax's denominator with a score of 0",
              lambda s, e, total, sink: None if s.visible.all() else divide(
                  e, total + (~s.visible).sum(axis=-1, keepdims=True)), {"rule": "ATT-4"}),
             ("mask-after-softmax", "the mask comes after the softmax: forbidden weights are {number:g}",
              mask_weights, {"rule": "ATT-4", "number": (0.0, -1e9, -1e4, -1e5, -65504.0)}),
             ("number-in-denominator", "{number:g} is added to the sum of the exponentials",
              lambda s, e, total, sink, number: divide(e, total + number),
              {"number": (1e-8, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9, 1e-10, 1e-12, 1.0)}),
             operations=WEIGHED),
    entry("sink-of-zero", "every head has a sink of 0: one more in the denominator", add_sink_of_zero),
    *entries(weigh,
             ("small-weights-dropped", "weights below {least:g} are dropped",
              lambda s, e, total, sink, least: divide_by_sums(np.where(e < least * total, 0, e), e, total, sink),
              {"least": (1e-4, 1e-3, 1e-5, 1e-6)}),
             ("exponentials-of-few-digits", "exponentials have {bits} bits",
              lambda s, e, total, sink, bits: divide(x := keep_bits(e, bits), x.sum(axis=-1, keepdims=True) + sink),
              {"bits": (12, 11, 8)}),
             operations=WEIGHED),
    entry("base-2", "exponentials are powers of 2, without log2(e)", take_base_2),
    entry("sum-of-first-keys", "the denominator lacks the keys past {first}", weigh(sum_first_keys),
          operations=WEIGHED, first=(256, 512, 1024, 32, 64, 128, 2048)),
)  # fmt: skip

# --- sinks ------------------------------------------------------------------------------------------------------------


def read_other_sinks(call: Call, order: str) -> AttentionSteps | None:
    heads = order_heads(call, order)
    same = np.array_equal(heads, np.arange(heads.size))
    return None if same else call.steps.read_elsewhere(sinks=heads[:, None, None])


def change_sinks(change: Callable[[AttentionSteps, np.ndarray], np.ndarray]) -> Change:
    """`change(steps, sinks)` in place of the sinks, with complex numbers too, which tell its slope."""

    def change_results(call: Call) -> list[Changed]:
        s, name = call.steps, gradient_name("sinks")
        new = change(s, np.asarray(s.sinks) + 1e-200j)
        found = results_of_steps(call, s.change(sinks=new.real), "both")
        return [r | ({name: r[name] * new.imag[:, 0, 0] / 1e-200} if name in r else {}) for r in found]

    return change_results


def cut_beside_sink(s: AttentionSteps, exponentials: np.ndarray, total: np.ndarray, sink: np.ndarray, end: str) -> Any:
    """The sink's column stands at one end, and that at the other end is cut off."""
    share, kept = sink / total, divide(exponentials, total)
    return np.concatenate([share, kept[..., :-1]] if end == "first" else [kept[..., 1:], share], axis=-1)


def shift_all_but_sink(call: Call) -> list[Changed]:
    """The maximum that the scores lack is that of the keys, or of the sink too."""
    s, scores, sink = call.steps, call.forward.scores, np.asarray(call.steps.sinks)
    ways = [np.exp(scores - row_maximum(scores, sinks)) for sinks in (s.sinks, None)]
    return [results_of_weights(call, Weights(divide(e, e.sum(axis=-1, keepdims=True) + np.exp(sink)))) for e in ways]


SINKS = ("sinks",)
OF_SINKS = (
    entry("sinks-ignored", "sinks are ignored", lambda call: call.steps.change(sinks=None), lacks="sinks", needs=SINKS),
    entry("sinks-of-other-heads", "head h has the sink of head {order}", read_other_sinks, needs=SINKS,
          order=tuple(HEAD_ORDERS)),
    entry("sinks-scaled", "sinks are multiplied by the scale", change_sinks(lambda s, sinks: sinks * s.scale),
          needs=SINKS),
    entry("sinks-capped", "sinks have the softcap", change_sinks(lambda s, sinks: s.cap(sinks)),
          needs=(*SINKS, "softcap")),
    entry("column-cut-beside-sink", "the sink's column stands {end}, and that at the other end is cut",
          weigh(cut_beside_sink), operations=WEIGHED, needs=SINKS, end=("first", "last")),
    entry("sink-not-shifted", "the sink's exponential is taken without subtracting the maximum", shift_all_but_sink,
          operations=WEIGHED, needs=SINKS),
)  # fmt: skip

# --- exponentials out of range ----------------------------------------------------------------------------------------


def subtract_from_scores(low: Callable[..., Any], guards: Sequence[float] = (0.0, 1e-30)) -> Change:
    """Subtract `low(steps, scores, **values)` in place of each row's maximum, and exponentiate.

    In the compute dtype, and in float64, which some use whatever the inputs have. guards: what the sum is kept from
    falling below; with 0, 0 / 0 is NaN.
    """

    def change(call: Call, **values: object) -> list[Changed]:
        subtracted = low(call.steps, call.forward.scores, **values)
        if subtracted is None:
            return []
        dtypes = dict.fromkeys((compute_dtype_name(call.case.dtype), "float64"))
        found = [exponentiate(call, subtracted, guard, np.finfo(dtype)) for dtype in dtypes for guard in guards]
        return [one for one in found if one is not None]

    return change


def exponentiate(call: Call, low: np.ndarray, guard: float, form: np.finfo[Any]) -> Prediction | None:
    """What becomes of rows whose exponentials this format does not hold; None where there are none.

    Rows in which rounding decides are left open: largest exponents within 1 of the largest, or whose sum with the
    values may be too large; and sums so small that subnormal numbers count in them.
    """
    s, scores, lse = call.steps, call.forward.scores, call.case.operation == "attention_logsumexp"
    sinks = np.full((1, 1, 1, 1), -np.inf) if s.sinks is None else s.sinks
    best = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sinks) - low
    keys, size = max(scores.shape[-1], 1), 1.0 if s.value is None else np.abs(s.value).max(initial=1)
    beyond, high = best > np.log(form.max) + 1, best > np.log(form.max) - np.log(keys * size) - 1
    none = np.isfinite(best) & (best < np.log(form.smallest_subnormal) - 1)
    sums = np.sum(np.exp(scores - low), axis=-1, keepdims=True) + np.exp(sinks - low)
    faded = np.isfinite(best) & (sums < 2 * guard)
    few = np.isfinite(best) & (best < np.log(form.tiny / form.eps)) & ~none & (guard <= form.tiny / form.eps)
    if not (beyond | none | faded).any():
        return None
    exponentials = np.where(s.allowed_pairs, np.exp((scores - low).astype(form.dtype)), 0).astype(float)
    total = exponentials.sum(axis=-1, keepdims=True) + np.exp((sinks - low).astype(form.dtype)).astype(float)
    total = np.where(s.allowed_pairs.any(axis=-1, keepdims=True) | np.isfinite(sinks), np.maximum(total, guard), 1)
    weights = exponentials / total
    changed, unsure = beyond | none | faded, high & ~beyond | few
    if lse:
        wrong, changed, unsure = low + np.log(total), changed[..., 0], unsure[..., 0]
        return predict_except_rows(call, {"output": np.where(changed, wrong[..., 0], call.right["output"])}, unsure)
    output = s.weigh_values(weights) if s.operation == "attention" else weights
    results = {"output": np.where(changed, output, call.right["output"])}
    graded = call.case.cotangents and not call.case.special and not s.with_logsumexp and s.sinks is None
    if graded and np.isfinite(weights).all() and not unsure.any():
        weights = np.where(changed, weights, call.forward.weights)
        mean = call.cotangent() * output if s.operation == "attention" else call.cotangent() * weights
        mean = np.where(sums < guard, 0, mean.sum(axis=-1, keepdims=True))
        results |= s.sum_gradients(s.pull_back(call.case.cotangents, weights, mean=mean), call.case.inputs)
    return predict_except_rows(call, results, unsure)


def predict_except_rows(call: Call, results: Results, unsure: np.ndarray) -> Prediction:
    """Predict the results, but for rows of the output in which they are unsure."""
    found = add_bounds(call, results)
    return found._replace(bounds=found.bounds | {"output": np.where(unsure, np.inf, found.bounds["output"])})


def lowest_score(s: AttentionSteps, scores: np.ndarray) -> np.ndarray | None:
    """The smallest score, where the scale is below 0."""
    lowest = np.where(s.allowed_pairs, scores, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    lowest = lowest if s.sinks is None else np.maximum(lowest, s.sinks)
    return np.where(np.isfinite(lowest), lowest, 0) if s.scale < 0 else None


def few_roundings(call: Call) -> np.ndarray:
    """A bound for an output of which each weight is off by a few roundings."""
    unit = 2.0 ** -PRECISION[call.case.dtype][0]
    return np.asarray((call.steps.sizes[-1] + 8) * unit * size_of_values(call))


def size_of_values(call: Call) -> float:
    """Of what is weighed."""
    value = call.steps.value
    return 1.0 if value is None else float(np.max(np.abs(value), initial=0, where=np.isfinite(value)))


RANGES = (
    entry("maximum-not-subtracted", "the maximum is not subtracted: exponentials overflow or are 0",
          subtract_from_scores(lambda s, scores: np.zeros((1, 1, 1, 1))), rule="ATT-10"),
    entry("maximum-too-high", "the maximum begins at {floor:g}: scores far below fade to 0",
          subtract_from_scores(lambda s, scores, floor: np.maximum(row_maximum(scores, s.sinks), floor),
                               (1e-30, 0.0, 1e-6)), rule="ATT-10", floor=(0.0, -1e3, -1e4, -1e5)),
    entry("maximum-clipped", "what is subtracted is no larger than {limit:g}",
          subtract_from_scores(lambda s, scores, limit: np.minimum(row_maximum(scores, s.sinks), limit)),
          rule="ATT-10", limit=(80.0, 50.0, 60.0, 88.0, 100.0)),
    entry("maximum-before-negative-scale", "the maximum is taken before a scale below 0",
          subtract_from_scores(lowest_score), rule="ATT-10"),
    entry("maximum-without-sink", "the maximum leaves out the sink: its exponential overflows",
          subtract_from_scores(lambda s, scores: row_maximum(scores)), rule="ATT-14", operations=LOGSUMEXP,
          needs=SINKS),
    entry("maximum-over-forbidden", "the maximum is taken over forbidden keys, too",
          subtract_from_scores(
              lambda s, scores: None if s.visible.all() else row_maximum(s.all_scores(), s.sinks)), rule="ATT-4"),
)  # fmt: skip

# --- log-sum-exps and weights as results ------------------------------------------------------------------------------


def change_logsumexp(change: Callable[[Call, np.ndarray], np.ndarray]) -> Change:
    return lambda call: {"output": change(call, call.forward.logsumexp[..., 0])}


COMPANIONS = (
    entry("weights-not-divided", "weights are exponentials before they are divided by their sum",
          weigh(lambda s, e, total, sink: e), rule="ATT-14", operations=WEIGHED[::-1]),
    *entries(change_logsumexp,
             ("logsumexp-base-2", "the log-sum-exp has base 2", lambda call, found: found / np.log(2)),
             ("logsumexp-without-maximum", "the maximum is not added to the log-sum-exp again",
              lambda call, found: found - row_maximum(call.forward.scores, call.steps.sinks)[..., 0]),
             ("logsumexp-in-16-bits", "the log-sum-exp is rounded to float16",
              lambda call, found: found.astype(np.float16).astype(float)),
             rule="ATT-14", operations=LOGSUMEXP),
    entry("logsumexp-of-forbidden", "the log-sum-exp counts forbidden keys", answer_with(mask=None), rule="ATT-14",
          operations=LOGSUMEXP),
)  # fmt: skip

MISTAKES = (*QUOTIENTS, *OF_SINKS, *RANGES, *COMPANIONS)
ENTRIES = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    ENTRIES["number-in-denominator"].choose(number=1.0),
    ENTRIES["sum-of-first-keys"].choose(first=1024),
    ENTRIES["sinks-of-other-heads"].choose(order="H - 1 - h"),
    ENTRIES["sinks-of-other-heads"].choose().limit(past("H", 64)),
    ENTRIES["sinks-ignored"].limit(Condition(lacks=("unmasked",))),
    *(ENTRIES["sinks-ignored"].limit(past("K", n)) for n in (64, 2048, 32768)),
    ENTRIES["sinks-ignored"].plant_in(*WEIGHED[1:]),
    *(ENTRIES[name].plant_in(*LOGSUMEXP, rule="ATT-14") for name in ("sinks-ignored", "maximum-not-subtracted")),
    *(ENTRIES["logsumexp-base-2"].limit(past("K", n)) for n in (128, 8192)),
)
