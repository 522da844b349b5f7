"""The softmax gone wrong: sums, maxima, overflow and sinks; log-sum-exps (ATT-5, ATT-10, ATT-14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.checks.comparison import PRECISION
from conformance.mistakes.attention_steps import AttentionSteps, row_maximum
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import past
from conformance.mistakes.mistake import Change, Changed, Mistake, Prediction, results_of_steps, with_bounds
from conformance.mistakes.scores import HEAD_ORDERS, SCORED, change_options, order_heads, read_at_other_places
from specification.dtypes import compute_dtype_name

WEIGHED, LOGSUMEXP = SCORED[:2], SCORED[2:]


def entry(
    name: str, rule: str, says: str, change: Change, operations: tuple[str, ...] = WEIGHED, **parameters: Sequence[Any]
) -> Mistake:
    return Mistake(f"softmax.{name}", rule, says, change, operations, parameters)


# --- weights by another quotient --------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Weights before dropout, and what takes their gradient to those of the scores and of the sinks [B, H, Q, 1]."""

    weights: np.ndarray
    pull_back: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]] | None


def weigh(weights: Callable[..., Weights | np.ndarray | None]) -> Change:
    """Take `weights(steps, scores, **values)`, from masked scores; None where there is no place for the mistake."""

    def change(call: Call, **values: Any) -> Results | None:
        found = weights(call.steps, call.forward.scores, **values)
        if found is None:
            return None
        return results_of_weights(call, found if isinstance(found, Weights) else Weights(found, None))

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
    gradients = steps.changed(sinks=None).pull_back_scores(scores, value, scores)._replace(sinks=sinks)
    return results | steps.sum_gradients(gradients, call.case.inputs)


def divide(numerators: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.asarray(numerators / np.where(total == 0, 1, total))


def divide_by_sums(
    numerators: np.ndarray,
    exponentials: np.ndarray,
    total: np.ndarray,
    *,
    sink: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    spread: Callable[[np.ndarray], np.ndarray] = lambda bar: bar,
) -> Weights:
    """Weights numerators / total, where the total is made of exponentials and the sink's.

    slopes: of the numerators, where they are not their own. spread: takes the gradient of the total to what shares it.
    """
    weights = divide(numerators, total)

    def pull_back(bar: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        axes = tuple(axis for axis in range(4) if total.shape[axis] == 1)
        total_bar = spread(-divide(np.sum(bar * weights, axis=axes, keepdims=True), total))
        own = divide(numerators if slopes is None else slopes, total)
        return own * bar + exponentials * total_bar, None if sink is None else sink * total_bar

    return Weights(weights, pull_back)


def exponentials_of(steps: AttentionSteps, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Exponentials, their sum, and the sink's."""
    exponentials, total, maximum = steps.exponentials(scores)
    return exponentials, total, None if steps.sinks is None else np.exp(steps.sinks - maximum)


AXES = {"queries": (-2,), "heads": (1,), "the batch": (0,), "all pairs of queries and keys": (-2, -1)}


def normalize_along(call: Call, axes: str) -> list[Changed]:
    """0 where nothing is allowed along these axes, or NaN."""
    s, along = call.steps, AXES[axes]
    scores = s.changed(bias=s.bias).masked_scores()
    largest = scores.max(axis=along, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.maximum(largest, -1e30))
    total = exponentials.sum(axis=along, keepdims=True)
    found = divide_by_sums(exponentials, exponentials, total)
    if s.sinks is not None:
        found = found._replace(pull_back=None)
    return [results_of_weights(call, found), results_of_weights(call, Weights(exponentials / total, None))]


def divide_by_sums_over_queries(s: AttentionSteps, scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - row_maximum(scores))
    return divide(exponentials, exponentials.sum(axis=-2, keepdims=True))


def count_forbidden(s: AttentionSteps, scores: np.ndarray) -> Weights | None:
    """Forbidden exponentials are 1 in the sum, as of shifted scores of 0."""
    exponentials, total, sink = exponentials_of(s, scores)
    forbidden = (~s.visible).sum(axis=-1, keepdims=True)
    return divide_by_sums(exponentials, exponentials, total + forbidden, sink=sink) if forbidden.any() else None


def mask_weights(s: AttentionSteps, scores: np.ndarray, number: float) -> Weights | None:
    """The weights of all keys, and a number for those that the mask forbids."""
    if s.visible.all():
        return None
    seen = s.changed(visible=np.ones_like(s.visible))
    exponentials, total, sink = exponentials_of(seen, seen.masked_scores())
    kept = np.where(s.visible, exponentials, 0)
    found = divide_by_sums(kept, exponentials, total, sink=sink)
    return found if number == 0 else found._replace(weights=np.where(s.visible, found.weights, number))


def divide_columns(s: AttentionSteps, scores: np.ndarray) -> Weights | None:
    """Sums of rows, as a row themselves."""
    exponentials, total, _ = exponentials_of(s, scores)
    if total.shape[-2] != exponentials.shape[-1] or s.sinks is not None:
        return None
    across = total.swapaxes(-1, -2)
    return divide_by_sums(exponentials, exponentials, across, spread=lambda bar: bar.swapaxes(-1, -2))


def sum_on(s: AttentionSteps, scores: np.ndarray) -> np.ndarray:
    exponentials, total, _ = exponentials_of(s, scores)
    return divide(exponentials, np.cumsum(total, axis=-2))


def subtract(maximum: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    """Another number than the row's maximum, where that is not the same for all keys; the row's own sum."""

    def weights(s: AttentionSteps, scores: np.ndarray) -> np.ndarray | None:
        subtracted = maximum(scores)
        if subtracted is None or s.sinks is not None:
            return None
        exponentials = np.exp(scores - subtracted)
        return divide(exponentials, exponentials.sum(axis=-1, keepdims=True))

    return weigh(weights)


def maximum_over_queries(scores: np.ndarray) -> np.ndarray | None:
    return None if scores.shape[-2] < 2 else row_maximum(scores.swapaxes(-1, -2)).swapaxes(-1, -2)


def maximum_as_row(scores: np.ndarray) -> np.ndarray | None:
    return row_maximum(scores).swapaxes(-1, -2) if scores.shape[-2] == scores.shape[-1] else None


def add_to_sum(s: AttentionSteps, scores: np.ndarray, number: float) -> Weights:
    exponentials, total, sink = exponentials_of(s, scores)
    return divide_by_sums(exponentials, exponentials, total + number, sink=sink)


def add_sink_of_zero(call: Call) -> Any:
    case = call.case
    if "sinks" in case.inputs:
        return None
    sinks = np.zeros(case.inputs["query"].shape[1], compute_dtype_name(case.dtype))
    return replace(case, inputs=case.inputs | {"sinks": sinks}, options={**case.options, "empty_rows": "zero"})


def drop_small(s: AttentionSteps, scores: np.ndarray, least: float) -> Weights:
    exponentials, total, sink = exponentials_of(s, scores)
    kept = np.where(divide(exponentials, total) < least, 0, exponentials)
    return divide_by_sums(kept, exponentials, total, sink=sink)


def cut_digits(s: AttentionSteps, scores: np.ndarray, bits: int) -> np.ndarray:
    exponentials, _, sink = exponentials_of(s, scores)
    fractions, exponents = np.frexp(exponentials)
    short = np.ldexp(np.trunc(fractions * 2.0**bits), exponents - bits)
    return divide(short, short.sum(axis=-1, keepdims=True) + (0 if sink is None else sink))


def take_base_2(call: Call) -> list[Changed]:
    """exp2 of scores and sinks that log2(e) has not multiplied."""
    s, ln2 = call.steps, np.log(2)
    sinks = None if s.sinks is None else s.sinks * ln2
    found = results_of_steps(call, s.changed(score=lambda t, p: (t.cap(p) + t.bias) * ln2, sinks=sinks), "both")
    name = gradient_name("sinks")
    return [results | ({name: results[name] * ln2} if name in results else {}) for results in found]


def sum_first_keys(s: AttentionSteps, scores: np.ndarray, first: int) -> Weights | None:
    """All weights are divided by the sum of the first ones, where there is any."""
    exponentials, total, sink = exponentials_of(s, scores)
    if first >= scores.shape[-1]:
        return None
    summed = np.where(np.arange(scores.shape[-1]) < first, exponentials, 0)
    some = summed.any(axis=-1, keepdims=True)
    summed = np.where(some, summed, exponentials)
    return divide_by_sums(exponentials, summed, summed.sum(-1, keepdims=True) + (0 if sink is None else sink), sink=sink)


def normalize_tiles(s: AttentionSteps, scores: np.ndarray, block: int) -> Weights | None:
    """Each tile of keys by itself."""
    exponentials, _, sink = exponentials_of(s, scores)
    K = scores.shape[-1]
    if block >= K or sink is not None:
        return None
    starts = np.arange(0, K, block)
    total = np.repeat(np.add.reduceat(exponentials, starts, axis=-1), block, axis=-1)[..., :K]

    def sum_tiles(bar: np.ndarray) -> np.ndarray:
        return np.repeat(np.add.reduceat(bar, starts, axis=-1), block, axis=-1)[..., :K]

    return divide_by_sums(exponentials, exponentials, total, spread=sum_tiles)


def saturate(s: AttentionSteps, scores: np.ndarray, block: int, limit: float) -> Weights | None:
    """Weights are exp2(score - maximum + 8), whose maximum lags by up to 4; past a limit they saturate, the sum does not."""
    if s.sinks is not None:
        return None
    maximum = np.full((*scores.shape[:-1], 1), -np.inf)
    kept, exponentials = np.zeros_like(scores), np.zeros_like(scores)
    for start in range(0, scores.shape[-1], block):
        keys = slice(start, start + block)
        larger = np.maximum(maximum, scores[..., keys].max(axis=-1, keepdims=True))
        new = np.where((larger - maximum) / np.log(2) <= 4, maximum, larger)
        shift = np.where(new == -np.inf, 0, new)
        factor = np.where(maximum == -np.inf, 0, np.exp(maximum - shift))
        kept, exponentials, maximum = kept * factor, exponentials * factor, new
        exponentials[..., keys] = np.exp(scores[..., keys] - shift) * 2**8
        kept[..., keys] = np.minimum(exponentials[..., keys], limit)
    total = exponentials.sum(axis=-1, keepdims=True)
    slopes = np.where(kept < exponentials, 0, kept)
    return divide_by_sums(kept, exponentials, total, slopes=slopes)


QUOTIENTS = (
    entry("along-other-axes", "ATT-5", "the softmax runs over {axes}, not keys", normalize_along, axes=tuple(AXES)),
    entry("sums-over-queries", "ATT-5", "the softmax divides by sums over queries, not keys",
          weigh(divide_by_sums_over_queries)),
    entry("forbidden-counted", "ATT-4", "forbidden keys stay in the softmax's denominator with a score of 0",
          weigh(count_forbidden)),
    entry("mask-after-softmax", "ATT-4", "the mask comes after the softmax: forbidden weights are {number:g}",
          weigh(mask_weights), number=(0.0, -1e9, -1e4, -1e5, -65504.0)),
    entry("columns-by-sums-of-rows", "ATT-5", "weights in column j are divided by the sum of row j",
          weigh(divide_columns)),
    entry("sum-not-set-back", "ATT-5", "the sum of the exponentials is not set back from row to row", weigh(sum_on)),
    entry("maximum-over-queries", "ATT-5", "the maximum is taken over queries, not keys",
          subtract(maximum_over_queries)),
    entry("maximum-of-rows-from-columns", "ATT-5", "the maximum of row j is subtracted from column j",
          subtract(maximum_as_row)),
    entry("number-in-denominator", "ATT-5", "{number:g} is added to the sum of the exponentials",
          weigh(add_to_sum), number=(1e-8, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9, 1e-10, 1e-12, 1.0)),
    entry("sink-of-zero", "ATT-5", "every head has a sink of 0: one more in the denominator", add_sink_of_zero, SCORED),
    entry("small-weights-dropped", "ATT-5", "weights below {least:g} are dropped",
          weigh(drop_small), least=(1e-4, 1e-3, 1e-5, 1e-6)),
    entry("exponentials-of-few-digits", "ATT-5", "exponentials have {bits} bits", weigh(cut_digits), bits=(12, 11, 8)),
    entry("base-2", "ATT-5", "exponentials are powers of 2, without log2(e)", take_base_2, SCORED),
    entry("sum-of-first-keys", "ATT-5", "the denominator lacks the keys past {first}",
          weigh(sum_first_keys), first=(256, 512, 1024, 32, 64, 128, 2048)),
    entry("tiles-by-themselves", "ATT-14", "each tile of {block} keys is normalised by itself",
          weigh(normalize_tiles), WEIGHED[::-1], block=(128, 2048, 32, 64, 256, 512, 1024)),
    entry("saturates", "ATT-5", "weights beside a lagging maximum saturate at {limit:g}, their sum does not (blocks of "
          "{block} keys)", weigh(saturate), block=(64, 16, 32, 128), limit=(448.0,)),
)  # fmt: skip

# --- sinks ------------------------------------------------------------------------------------------------------------


def change_sinks(change: Callable[..., np.ndarray | None]) -> Change:
    """`change(steps, sinks)` in place of the sinks, with complex numbers too, which tell its slope."""

    def changed(call: Call, **values: Any) -> list[Changed]:
        s, name = call.steps, gradient_name("sinks")
        new = None if s.sinks is None else change(s, s.sinks, **values)
        if s.sinks is None or new is None:
            return []
        slope = np.imag(change(s, s.sinks + 1e-200j, **values)) / 1e-200  # type: ignore[arg-type]
        found = results_of_steps(call, s.changed(sinks=new), "both")
        slopes = np.broadcast_to(slope, s.sinks.shape)[:, 0, 0]
        return [r | ({name: r[name] * slopes} if name in r else {}) for r in found]

    return changed


def count_sinks_by_part(s: AttentionSteps, sinks: np.ndarray, block: int) -> np.ndarray | None:
    parts = -(-s.sizes[-1] // block)
    return sinks + np.log(parts) if parts > 1 else None


def ignore_sinks(call: Call) -> Any:
    s = call.steps
    return None if s.sinks is None else s.changed(sinks=None)


def ignore_sinks_of_masked_rows(call: Call) -> Results | None:
    """A row in which anything is forbidden loses its sink."""
    s = call.steps
    if s.sinks is None or s.visible.all():
        return None
    without = s.changed(sinks=None).forward().output
    full = s.visible.all(axis=-1, keepdims=call.case.operation != "attention_logsumexp")
    return {"output": np.where(full, call.right["output"], without)}


def cut_beside_sink(s: AttentionSteps, scores: np.ndarray, end: str) -> np.ndarray | None:
    """The sink's column stands at one end, and that at the other end is cut off."""
    exponentials, total, sink = exponentials_of(s, scores)
    if sink is None:
        return None
    share, kept = np.broadcast_to(sink / total, total.shape), divide(exponentials, total)
    return np.concatenate([share, kept[..., :-1]] if end == "first" else [kept[..., 1:], share], axis=-1)


def give_sink_first_value(s: AttentionSteps, scores: np.ndarray) -> np.ndarray | None:
    exponentials, total, sink = exponentials_of(s, scores)
    if sink is None or s.operation != "attention":
        return None
    weights = divide(exponentials, total)
    weights[..., :1] += 1 - weights.sum(axis=-1, keepdims=True)
    return weights


def take_sink_unshifted(call: Call) -> list[Changed]:
    """The maximum that the scores lack is that of the keys, or of the sink too."""
    s, scores = call.steps, call.forward.scores
    if s.sinks is None:
        return []
    ways = (np.exp(scores - row_maximum(scores, sinks)) for sinks in (s.sinks, None))
    sums = ((e, e.sum(axis=-1, keepdims=True) + np.exp(s.sinks)) for e in ways)
    return [results_of_weights(call, Weights(divide(e, total), None)) for e, total in sums]


def read_sinks_of_other_heads(call: Call, order: str) -> list[Changed]:
    return read_at_other_places(call, "sinks", lambda sinks: sinks[order_heads(call, order)])


SINKS = (
    entry("sinks-ignored", "ATT-5", "sinks are ignored", ignore_sinks, SCORED),
    entry("sinks-of-other-heads", "ATT-5", "head h has the sink of head {order}", read_sinks_of_other_heads, SCORED,
          order=("0", "H - 1 - h", *(order for order in HEAD_ORDERS if order not in ("0", "H - 1 - h")))),
    entry("sinks-scaled", "ATT-5", "sinks are multiplied by the scale",
          change_sinks(lambda s, sinks: sinks * s.scale), SCORED),
    entry("sinks-capped", "ATT-5", "sinks have the softcap",
          change_sinks(lambda s, sinks: None if s.softcap is None else s.cap(sinks)), SCORED),
    entry("sinks-by-part", "ATT-5", "the sink counts once for every part of {block} keys",
          change_sinks(count_sinks_by_part), SCORED, block=(64, 4096, 16, 32, 128, 256, 512, 1024)),
    entry("sinks-of-rows-without-mask", "ATT-5", "rows in which anything is forbidden have no sink",
          ignore_sinks_of_masked_rows, SCORED),
    entry("column-cut-beside-sink", "ATT-5", "the sink's column stands {end}, and that at the other end is cut off",
          weigh(cut_beside_sink), end=("first", "last")),
    entry("sink-with-a-value", "ATT-5", "the sink has the first value", weigh(give_sink_first_value)),
    entry("sink-not-shifted", "ATT-5", "the sink's exponential is taken without subtracting the maximum",
          take_sink_unshifted),
)  # fmt: skip

# --- exponentials out of range ----------------------------------------------------------------------------------------

Guard = float
"""What a sum of exponentials is kept from falling below; 0 for none, so that 0 / 0 is NaN."""


def subtract_from_scores(low: Callable[..., Any], guards: Sequence[Guard] = (0.0, 1e-30)) -> Change:
    """Subtract `low(steps, scores, **values)` in place of each row's maximum, and exponentiate.

    In the compute dtype, and in float64, which some use whatever the inputs have.
    """

    def change(call: Call, **values: Any) -> list[Changed]:
        subtracted = low(call.steps, call.forward.scores, **values)
        if subtracted is None:
            return []
        dtypes = dict.fromkeys((compute_dtype_name(call.case.dtype), "float64"))
        found = [exponentiate(call, subtracted, guard, np.finfo(dtype)) for dtype in dtypes for guard in guards]
        return [one for one in found if one is not None]

    return change


def exponentiate(call: Call, low: np.ndarray, guard: Guard, form: np.finfo[Any]) -> Prediction | None:
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
    exponentials = np.where(s.allowed, np.exp((scores - low).astype(form.dtype)), 0).astype(float)
    total = exponentials.sum(axis=-1, keepdims=True) + np.exp((sinks - low).astype(form.dtype)).astype(float)
    total = np.where(s.allowed.any(axis=-1, keepdims=True) | np.isfinite(sinks), np.maximum(total, guard), 1)
    weights = exponentials / total
    changed, unsure = beyond | none | faded, high & ~beyond | few
    if lse:
        wrong, changed, unsure = low + np.log(total), changed[..., 0], unsure[..., 0]
        return with_doubt(call, {"output": np.where(changed, wrong[..., 0], call.right["output"])}, unsure)
    output = s.weigh_values(weights) if s.operation == "attention" else weights
    results = {"output": np.where(changed, output, call.right["output"])}
    graded = call.case.cotangents and not call.case.special and not s.with_logsumexp and s.sinks is None
    if graded and np.isfinite(weights).all() and not unsure.any():
        weights = np.where(changed, weights, call.forward.weights)
        mean = call.cotangent() * output if s.operation == "attention" else call.cotangent() * weights
        mean = np.where(sums < guard, 0, mean.sum(axis=-1, keepdims=True))
        results |= s.sum_gradients(s.pull_back(call.case.cotangents, weights, mean=mean), call.case.inputs)
    return with_doubt(call, results, unsure)


def with_doubt(call: Call, results: Results, unsure: np.ndarray) -> Prediction:
    """Say nothing of these rows of the output."""
    found = with_bounds(call, results)
    return found._replace(bounds=found.bounds | {"output": np.where(unsure, np.inf, found.bounds["output"])})


def lowest_score(s: AttentionSteps, scores: np.ndarray) -> np.ndarray | None:
    """The smallest score, where the scale is below 0."""
    lowest = np.where(s.allowed, scores, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    lowest = lowest if s.sinks is None else np.maximum(lowest, s.sinks)
    return np.where(np.isfinite(lowest), lowest, 0) if s.scale < 0 else None


def highest_of_all(s: AttentionSteps, scores: np.ndarray) -> np.ndarray | None:
    return None if s.visible.all() else row_maximum(s.all_scores(), s.sinks)


def hold_one_logsumexp(call: Call) -> Prediction | None:
    """exp(score - log-sum-exp), where the compute dtype holds nothing of the logarithm beside such scores.

    Then no weight is divided. Where it holds some digits, the result is right within the bounds of the case.
    """
    s, case = call.steps, call.case
    if s.sinks is not None or case.special:
        return None
    dtype = np.dtype(compute_dtype_name(case.dtype))
    scores, best = call.forward.scores, row_maximum(call.forward.scores)
    logarithm = np.log(np.sum(np.exp(scores - best), axis=-1, keepdims=True))
    lost = np.isfinite(logarithm) & (logarithm > 0.5) & (logarithm < np.spacing(np.abs(best).astype(dtype)) / 4)
    if not lost.any():
        return None
    weights = np.exp(scores - best)
    output = (weights * s.factor) @ s.values if case.operation == "attention" else weights
    found = with_bounds(call, {"output": np.where(lost, output, call.right["output"])})
    near = few_roundings(call, weights.sum(axis=-1, keepdims=True))
    return found._replace(bounds={"output": np.where(lost, near, call.bounds["output"])})


def few_roundings(call: Call, total: Any = 1.0) -> np.ndarray:
    """A bound for an output of which each weight is off by a few roundings, beside a sum over the keys."""
    s = call.steps
    size = np.abs(s.value).max(initial=0) if s.operation == "attention" and s.value is not None else 1.0
    return np.asarray((s.sizes[-1] + 8) * 2.0 ** -PRECISION[call.case.dtype][0] * size * total)


RANGES = (
    entry("maximum-not-subtracted", "ATT-10", "the maximum is not subtracted: exponentials overflow or are all 0",
          subtract_from_scores(lambda s, scores: np.zeros((1, 1, 1, 1))), SCORED),
    entry("maximum-too-high", "ATT-10", "the maximum begins at {floor:g}: scores far below fade to 0",
          subtract_from_scores(lambda s, scores, floor: np.maximum(row_maximum(scores, s.sinks), floor),
                               (1e-30, 0.0, 1e-6)), floor=(0.0, -1e3, -1e4, -1e5)),
    entry("maximum-clipped", "ATT-10", "what is subtracted is no larger than {limit:g}",
          subtract_from_scores(lambda s, scores, limit: np.minimum(row_maximum(scores, s.sinks), limit)), SCORED,
          limit=(80.0, 50.0, 60.0, 88.0, 100.0)),
    entry("maximum-before-negative-scale", "ATT-10", "the maximum is taken before a scale below 0",
          subtract_from_scores(lowest_score), SCORED),
    entry("maximum-without-sink", "ATT-5", "the maximum leaves out the sink: its exponential overflows",
          subtract_from_scores(lambda s, scores: None if s.sinks is None else row_maximum(scores)), SCORED),
    entry("maximum-over-forbidden", "ATT-4", "the maximum is taken over forbidden keys, too",
          subtract_from_scores(highest_of_all), SCORED),
    entry("one-logsumexp", "ATT-4", "weights are exp(score - log-sum-exp), which loses its digits beside such scores",
          hold_one_logsumexp),
)  # fmt: skip

# --- log-sum-exps and weights as results ------------------------------------------------------------------------------


def change_logsumexp(change: Callable[[Call, np.ndarray], np.ndarray]) -> Change:
    return lambda call: {"output": change(call, call.forward.logsumexp[..., 0])}


def subtract_maximum_for_good(call: Call, logsumexp: np.ndarray) -> np.ndarray:
    return np.asarray(logsumexp - row_maximum(call.forward.scores, call.steps.sinks)[..., 0])


COMPANIONS = (
    entry("weights-not-divided", "ATT-14", "weights are the exponentials before they are divided by their sum",
          weigh(lambda s, scores: exponentials_of(s, scores)[0]), WEIGHED[::-1]),
    entry("logsumexp-base-2", "ATT-14", "the log-sum-exp has base 2",
          change_logsumexp(lambda call, found: found / np.log(2)), LOGSUMEXP),
    entry("logsumexp-without-maximum", "ATT-14", "the maximum is not added to the log-sum-exp again",
          change_logsumexp(subtract_maximum_for_good), LOGSUMEXP),
    entry("logsumexp-in-16-bits", "ATT-14", "the log-sum-exp is rounded to float16",
          change_logsumexp(lambda call, found: found.astype(np.float16).astype(float)), LOGSUMEXP),
    entry("logsumexp-of-forbidden", "ATT-14", "the log-sum-exp counts forbidden keys",
          lambda call: None if call.case.options.get("mask") is None else change_options(call.case, mask=None),
          LOGSUMEXP),
)  # fmt: skip

MISTAKES = (*QUOTIENTS, *SINKS, *RANGES, *COMPANIONS)
ENTRIES = {mistake.id.removeprefix("softmax."): mistake for mistake in MISTAKES}


def plant_in(operation: str, rule: str, name: str, **values: Any) -> Mistake:
    return replace(ENTRIES[name].choose(**values), operations=(operation,), rule=rule)


PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    ENTRIES["number-in-denominator"].choose(number=1.0),
    *(ENTRIES["sum-of-first-keys"].choose(first=n) for n in (1024,)),
    *(ENTRIES["sinks-ignored"].under(past("K", n)) for n in (64, 2048, 32768)),
    *(ENTRIES["sinks-of-other-heads"].choose(order=order) for order in ("H - 1 - h", "h % G")),
    ENTRIES["sinks-of-other-heads"].choose().under(past("H", 64)),
    ENTRIES["sinks-by-part"].choose(block=4096),
    plant_in("attention_weights", "ATT-5", "sinks-ignored"),
    plant_in("attention_logsumexp", "ATT-14", "sinks-ignored"),
    plant_in("attention_logsumexp", "ATT-14", "maximum-without-sink"),
    plant_in("attention_logsumexp", "ATT-14", "maximum-not-subtracted"),
    plant_in("attention_weights", "ATT-14", "tiles-by-themselves", block=2048),
    *(ENTRIES["logsumexp-base-2"].under(past("K", n)) for n in (128, 8192)),
)
"""What is planted: every mistake with the first values of its parameters, and some with others or past a size."""
