"""Known mistakes of attention, its weights and its log-sum-exp.

Most are the definition's answer to another question: a mask inverted, a scale left out. The others are computed here,
step by step in float64, with one step done wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases import Case
from conformance.diagnosis import blocks, precision
from conformance.diagnosis.matching import Bounds, Mistake, computed, exactly, instead
from conformance.diagnosis.steps import (
    capped,
    exact_bias,
    exact_products,
    exact_sinks,
    exact_value,
    masked_scores,
    resolved_scale,
)
from conformance.expectations import Exact
from conformance.oracle import oracle
from conformance.pairs import dense_meaning
from conformance.verdict import LARGEST, PRECISION
from specification import Causal, Dense, KeyLengths, SlidingWindow


def with_mask(case: Case, mask: Any) -> Case:
    return replace(case, options=case.options | {"mask": mask})


def with_options(case: Case, **options: Any) -> Case:
    return replace(case, options=case.options | options)


# --- masks ------------------------------------------------------------------------------------------------------------


def dense_changed(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Case | None]:
    """The same question with another dense mask, where there is a mask."""

    def changed(case: Case) -> Case | None:
        if case.options.get("mask") is None:
            return None
        meaning = dense_meaning(case)
        return with_mask(case, Dense(np.array(np.broadcast_to(change(meaning), meaning.shape))))

    return changed


def offset_changed(change: Callable[[Any, int, int], Any]) -> Callable[[Case], Case | None]:
    """A causal mask at another offset; `change` gets the offset, Q and K."""

    def changed(case: Case) -> Case | None:
        mask = case.options.get("mask")
        if not isinstance(mask, Causal):
            return None
        Q, K = case.inputs["query"].shape[2], case.inputs["key"].shape[2]
        return with_mask(case, Causal(change(0 if mask.offset is None else mask.offset, Q, K)))

    return changed


def bottom_right(offset: Any, queries: int, keys: int) -> int:
    return keys - queries


def window_changed(left: int, right: int) -> Callable[[Case], Case | None]:
    def changed(case: Case) -> Case | None:
        mask = case.options.get("mask")
        if not isinstance(mask, SlidingWindow):
            return None
        sides = (None if side is None else side + step for side, step in ((mask.left, left), (mask.right, right)))
        low, high = sides
        if (low is not None and low < 0) or (high is not None and high < 0):
            return None
        return with_mask(case, SlidingWindow(low, high, mask.offset))

    return changed


def lengths_changed(step: int) -> Callable[[Case], Case | None]:
    def changed(case: Case) -> Case | None:
        mask = case.options.get("mask")
        if not isinstance(mask, KeyLengths):
            return None
        return with_mask(case, KeyLengths(np.clip(np.asarray(mask.lengths) + step, 0, case.inputs["key"].shape[2])))

    return changed


def empty_rows_as(mode: str) -> Callable[[Case], Case | None]:
    def changed(case: Case) -> Case | None:
        if "sinks" in case.inputs or case.operation == "attention_logsumexp":
            return None
        return with_options(case, empty_rows=mode)

    return changed


MASK_MISTAKES = [
    instead("the mask is inverted: True is taken for forbidden", dense_changed(np.logical_not)),
    instead("the mask is ignored", dense_changed(np.ones_like)),
    instead("the mask is transposed", dense_changed(lambda m: m.swapaxes(2, 3) if m.shape[2] == m.shape[3] else m)),
    instead("the mask of batch element 0 is used for all", dense_changed(lambda m: m[:1])),
    instead("the mask of head 0 is used for all heads", dense_changed(lambda m: m[:, :1])),
    instead("the causal mask is aligned to the first query and key (top left)", offset_changed(lambda o, Q, K: 0)),
    instead("the causal mask is aligned to the last query and key (bottom right)", offset_changed(bottom_right)),
    instead("the causal mask is off by one: a query does not see its own key", offset_changed(lambda o, Q, K: o - 1)),
    instead("the causal mask is off by one: a query sees the key after its own", offset_changed(lambda o, Q, K: o + 1)),
    instead("the window's left end is left out", window_changed(-1, 0)),
    instead("the window's right end is left out", window_changed(0, -1)),
    instead("the window is one too wide on the left", window_changed(1, 0)),
    instead("the window is one too wide on the right", window_changed(0, 1)),
    instead("key lengths count one key too few", lengths_changed(-1)),
    instead("key lengths count one key too many", lengths_changed(1)),
    instead("rows that allow nothing get the mean of all values", empty_rows_as("mean")),
    instead("rows that allow nothing get NaN", empty_rows_as("nan")),
]


# --- scale, softcap, bias, sinks, heads -------------------------------------------------------------------------------


def scaled(scale: Callable[[float, Case], float]) -> Callable[[Case], Case | None]:
    def changed(case: Case) -> Case | None:
        given = case.options.get("scale")
        own = 1 / np.sqrt(case.inputs["query"].shape[-1]) if given is None else given
        new = float(scale(own, case))
        return None if new == own or not np.isfinite(new) else with_options(case, scale=new)

    return changed


def width(case: Case) -> int:
    return case.inputs["query"].shape[-1]


def model_width(case: Case) -> int:
    return max(1, case.inputs["query"].shape[1] * width(case))


def value_width(case: Case) -> int:
    return max(1, case.inputs["value"].shape[-1]) if "value" in case.inputs else width(case)


def left_out(name: str) -> Callable[[Case], Case | None]:
    """Without one input or option."""

    def changed(case: Case) -> Case | None:
        if name in case.inputs:
            return replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})
        return with_options(case, **{name: None}) if case.options.get(name) is not None else None

    return changed


def keys_read(name: str, order: Callable[[int, int], np.ndarray]) -> Mistake:
    """Query heads read other key heads; `order` gets H and G."""

    def answers(case: Case) -> tuple[dict[str, Exact], Bounds] | None:
        H, G = case.inputs["query"].shape[1], case.inputs["key"].shape[1]
        if not 1 < G < H:
            return None
        read = order(H, G)
        inputs = {n: np.take(a, read, axis=1) if n in ("key", "value") else a for n, a in case.inputs.items()}
        other = replace(case, inputs=inputs)
        exact, bounds = oracle(other), bound(other)
        for gradient in {"gradient of key", "gradient of value"} & exact.keys():
            high, low = (of_key_heads(array, read, G) for array in exact[gradient])
            rounding = 2.0**-52 * H * of_key_heads(np.abs(exact[gradient].high), read, G)  # of these sums themselves
            exact[gradient] = Exact(high, low)
            bounds[gradient] = of_key_heads(bounds[gradient], read, G) + rounding
        return exact, bounds

    return Mistake(name, answers)


def of_key_heads(array: np.ndarray, read: np.ndarray, heads: int) -> np.ndarray:
    """Sums over the query heads that read each of so many key heads."""
    return np.stack([array[:, read == head].sum(axis=1) for head in range(heads)], axis=1)


SCORE_MISTAKES = [
    instead("the scale is 1: it is left out", scaled(lambda s, case: 1.0)),
    instead("the given scale is ignored: 1 / sqrt(D) is used", scaled(lambda s, case: width(case) ** -0.5)),
    instead("the scale is 1 / D", scaled(lambda s, case: 1 / width(case))),
    instead("the scale is that of the model width H * D", scaled(lambda s, case: model_width(case) ** -0.5)),
    instead("the scale is 1 / sqrt(V)", scaled(lambda s, case: value_width(case) ** -0.5)),
    instead("the scale is applied twice", scaled(lambda s, case: s * s)),
    instead("the scale is on top of 1 / sqrt(D)", scaled(lambda s, case: s * width(case) ** -0.5)),
    instead("the root of the scale is used once", scaled(lambda s, case: np.sqrt(abs(s)))),
    instead("the scale's sign is lost", scaled(lambda s, case: abs(s))),
    instead("softcap is ignored", left_out("softcap")),
    instead("bias is ignored", left_out("bias")),
    instead("sinks are ignored", left_out("sinks")),
    instead("dropout is ignored", lambda case: left_out("dropout_keep")(with_options(case, dropout_rate=0.0))),
    keys_read("query head h reads key head h % G", lambda H, G: np.arange(H) % G),
    keys_read("every query head reads key head 0", lambda H, G: np.zeros(H, int)),
]


# --- one step of the formula done wrong -------------------------------------------------------------------------------


def stepwise(name: str, uses: str = "", **steps: Any) -> Mistake:
    """Attention with one step done differently; forward only. `uses`: an input or option without which it is right."""

    def output(case: Case) -> Any:
        if uses and case.inputs.get(uses) is None and case.options.get(uses) is None:
            return None
        return attention(case, **steps)

    return computed(name, output)


def attention(
    case: Case, score: Any = None, axis: int = -1, weigh: Any = None, sum_of: Any = None, forbidden: float = -np.inf
) -> Any:
    """score(products, bias, cap, scale), weigh(weights, case), sum_of(exponentials, allowed) replace right steps.
    forbidden: the score of pairs that the mask forbids.
    """
    products, cap = exact_products(case), capped(case.options.get("softcap"))
    bias, allowed = exact_bias(case)
    scores = cap(products) + bias if score is None else score(products, bias, cap, resolved_scale(case))
    scores = np.where(allowed, scores, np.where(dense_meaning(case), -np.inf, forbidden))
    maximum = scores.max(axis=axis, keepdims=True, initial=-1e30)
    exponentials = np.exp(scores - maximum)
    total = exponentials.sum(axis=axis, keepdims=True) if sum_of is None else sum_of(exponentials, allowed)
    if "sinks" in case.inputs:
        total = total + np.exp(exact_sinks(case) - maximum)
    weights = exponentials / np.where(total == 0, 1, total)
    weights = weights if weigh is None else weigh(weights, case)
    if case.operation == "attention_weights":
        return weights
    if case.operation != "attention":
        return None
    keep = case.options.get("dropout_keep")
    if keep is not None:
        weights = np.where(keep, weights / (1 - case.options["dropout_rate"]), 0)
    return weights @ exact_value(case)


def filled(value: float) -> Mistake:
    """A number for the scores that the mask forbids; named where they have weight in a row that allows something."""

    def answers(case: Case) -> tuple[dict[str, Exact], Bounds] | None:
        best = masked_scores(case).max(axis=-1, keepdims=True, initial=-np.inf)
        allowed = dense_meaning(case)
        seen = ~allowed & np.isfinite(best) & (np.exp(value - np.maximum(best, value)) > 0)
        array = attention(case, forbidden=value) if seen.any() else None
        if array is None:
            return None
        # What rows that allow nothing give is another matter: the mean, or zeros put in afterwards.
        return whatever_the_scores(case, array, allowed.any(axis=-1, keepdims=True))

    return Mistake(f"forbidden scores are a number, not -inf ({value:g})", answers, of_any_size=True)


def whatever_the_scores(
    case: Case, output: np.ndarray, rows: np.ndarray, total: Any = 1.0
) -> tuple[dict[str, Exact], Bounds]:
    """The output in these rows, with a bound for weights that add up to `total`, of a few roundings each, and a sum
    over K.
    """
    roundings = (case.inputs["key"].shape[2] + 8) * 2.0 ** -PRECISION[case.dtype][0]
    size = np.max(np.abs(exact_value(case)), initial=0) if case.operation == "attention" else 1.0
    bounds = np.where(rows, roundings * size * total, np.inf)
    return {"output": exactly(output)}, {"output": np.broadcast_to(bounds, output.shape)}


def by_one_logsumexp(case: Case) -> tuple[dict[str, Exact], Bounds] | None:
    """Weights exp(score - log-sum-exp), where float32 does not hold the latter to the 11 digits of float16.

    Where it holds nothing of the logarithm these are the weights that nobody divided.
    """
    if case.operation not in ("attention", "attention_weights") or case.dtype == "float64":
        return None
    if "sinks" in case.inputs or case.options.get("dropout_keep") is not None:
        return None
    scores = masked_scores(case).astype(np.float32).astype(float)
    best = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), -LARGEST["float32"])
    logarithm = np.log(np.exp(scores - best).sum(axis=-1, keepdims=True))
    held = (best + logarithm).astype(np.float32).astype(float)
    lost = np.abs((held - best) - logarithm) > 2.0 ** -PRECISION["float16"][0]
    weights = np.exp(scores - np.where(np.isfinite(held), held, 0))
    if not (lost.any() and np.isfinite(weights).all()):
        return None
    array = weights @ exact_value(case) if case.operation == "attention" else weights
    return whatever_the_scores(case, array, np.isfinite(held), weights.sum(axis=-1, keepdims=True))


def renormalised(weights: np.ndarray, case: Case) -> np.ndarray:
    keep = np.asarray(case.options["dropout_keep"])
    kept = np.where(keep, weights, 0)
    total = kept.sum(axis=-1, keepdims=True)
    return kept / np.where(total == 0, 1, total) * (1 - case.options["dropout_rate"])


def capped_before_the_scale(products: Any, bias: Any, cap: Any, scale: float) -> Any:
    return (scale * cap(products / scale) if scale else products) + bias


def clipped(products: Any, bias: Any, cap: Any, scale: float) -> Any:
    return np.clip(products, cap(-np.inf), cap(np.inf)) + bias


STEP_MISTAKES = [
    stepwise("the softcap comes before the scale", "softcap", score=capped_before_the_scale),
    stepwise("scores are clipped at the softcap, without tanh", "softcap", score=clipped),
    stepwise("the softcap is not multiplied back in", "softcap", score=lambda p, b, cap, s: cap(p) / cap(np.inf) + b),
    stepwise("scores are not divided by the softcap", "softcap", score=lambda p, b, cap, s: cap(p * cap(np.inf)) + b),
    stepwise("bias is added before the softcap", "bias", score=lambda p, b, cap, s: cap(p + b)),
    stepwise("bias is added twice", "bias", score=lambda p, b, cap, s: cap(p) + 2 * b),
    stepwise("bias is subtracted", "bias", score=lambda p, b, cap, s: cap(p) - b),
    stepwise("bias is multiplied by the scale", "bias", score=lambda p, b, cap, s: cap(p) + b * s),
    stepwise("the softmax runs over queries, not keys", axis=-2),
    stepwise(
        "forbidden keys stay in the softmax's denominator with a score of 0",
        "mask",
        sum_of=lambda e, allowed: e.sum(-1, keepdims=True) + (~allowed).sum(-1, keepdims=True),
    ),
    stepwise("weights are renormalised after dropout", "dropout_keep", weigh=renormalised),
]

FILLS = [filled(value) for value in (-1e4, -1e5, -1e9, -1e20)]
"""Before the others: where all that a row allows scores lower, only forbidden keys count, as with a mask inverted."""

UNDIVIDED = Mistake(
    "weights are not divided by their sum, or as exp(score - log-sum-exp), which float32 loses beside such scores",
    by_one_logsumexp,
    of_any_size=True,
)

MISTAKES = [*FILLS, UNDIVIDED, *MASK_MISTAKES, *SCORE_MISTAKES, *STEP_MISTAKES, *blocks.MISTAKES, *precision.MISTAKES]
