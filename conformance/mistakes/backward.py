"""Mistakes of attention's backward pass beside a right output (ATT-12), or beside a right log-sum-exp (ATT-14).

A bar marks the gradient with respect to a name, T the softcap's slope, F the factor of dropout, L the log-sum-exp:

    V_bar = (F * P)^T O_bar             P_bar = F * (O_bar V^T)
    S_bar = P * (P_bar - rowsum(P * P_bar) + L_bar)
    Q_bar = scale * (S_bar * T) K       K_bar = scale * (S_bar * T)^T Q
    sink_bar = sum of exp(sink - L) * (L_bar - rowsum(P * P_bar))

Every entry predicts all gradients, also those that are right, and nothing of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.cases.arguments import expected_dtype, gradient_name
from conformance.cases.kernel_arguments import padded_queries
from conformance.mistakes import masks
from conformance.mistakes.attention_steps import AttentionSteps, Gradients, row_maximum
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition, past
from conformance.mistakes.mistake import Change, Mistake, Prediction, with_bounds
from specification.dtypes import HALF, compute_dtype_name

DIFFERENTIATED = ("attention", "attention_weights", "attention_logsumexp")
INPUTS = ("query", "key", "value", "bias", "sinks")
BLOCKS = (64, 2, 4, 8, 16, 32, 48, 80, 96, 128, 160, 192, 256, 512)
"""Rows or keys that a step of a kernel goes through."""
LN2 = float(np.log(2))


def pull_back_otherwise(ways: Callable[..., Iterable[Gradients]]) -> Change:
    """Sum up the gradients of each way; none where no gradient is asked for, or NaN may stand behind a mask."""

    def change(call: Call, **values: Any) -> list[Results]:
        if not call.case.cotangents or call.case.special:
            return []
        return [call.steps.sum_gradients(gradients, call.case.inputs) for gradients in ways(call, **values)]

    return change


def replace_gradients(ways: Callable[..., Iterable[Results]]) -> Change:
    """Put each way's gradients, by the names of the inputs, in place of the right ones."""

    def change(call: Call, **values: Any) -> list[Results]:
        if not call.case.cotangents or call.case.special:
            return []
        right = {name: array for name, array in call.right.items() if name.startswith("gradient of ")}
        wrong = ({gradient_name(name): array for name, array in way.items()} for way in ways(call, **values))
        return [right | way for way in wrong if way and way.keys() <= right.keys()]

    return change


def to_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round to a dtype; to bfloat16 by way of float32."""
    narrow = array.astype(np.float32).astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else array.astype(dtype)
    return np.asarray(narrow, float)


# --- the mean that is subtracted --------------------------------------------------------------------------------------


def weights_bar(call: Call) -> np.ndarray:
    """P_bar, the gradient of the weights before dropout."""
    if call.steps.operation == "attention_weights":
        return call.cotangent()
    return np.asarray((call.cotangent() @ call.steps.values.swapaxes(-1, -2)) * call.steps.factor)


def row_mean(call: Call) -> np.ndarray:
    """rowsum(P * P_bar), [B, H, Q, 1]."""
    return np.sum(call.forward.weights * weights_bar(call), axis=-1, keepdims=True)


def plain_mean(call: Call) -> np.ndarray:
    allowed = call.steps.allowed
    count = np.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    return np.asarray(np.where(allowed, weights_bar(call), 0).sum(axis=-1, keepdims=True) / count)


def mean_before_dropout(call: Call) -> np.ndarray:
    bar = call.cotangent() @ call.steps.values.swapaxes(-1, -2)
    return np.sum(call.forward.weights * bar, axis=-1, keepdims=True)


def mean_of_returned_output(call: Call) -> np.ndarray:
    filled = call.steps.allowed.any(axis=-1, keepdims=True)
    output = to_dtype(np.where(filled, call.forward.output, 0), call.case.dtype)
    return np.sum(call.cotangent() * output, axis=-1, keepdims=True)


MEANS: dict[str, Callable[[Call], np.ndarray]] = {
    "nothing": lambda call: np.zeros_like(call.forward.logsumexp),
    "-rowsum(P * P_bar)": lambda call: -row_mean(call),
    "scale * rowsum(P * P_bar)": lambda call: row_mean(call) * call.steps.scale,
    "rowsum(P^2 * P_bar)": lambda call: np.sum(call.forward.weights**2 * weights_bar(call), axis=-1, keepdims=True),
    "the plain mean of P_bar over the allowed keys": plain_mean,
    "rowsum(P * P_bar) with P_bar before dropout": mean_before_dropout,
    "the mean of O_bar * O over the width": lambda call: row_mean(call) / max(call.steps.values.shape[-1], 1),
    "rowsum(O_bar * O) before the output is divided by its sum": lambda call: (
        row_mean(call) * call.steps.exponentials(call.forward.scores)[1]
    ),
    "rowsum(O_bar * O) of the output as it is returned": mean_of_returned_output,
}
"""What is subtracted from P_bar in place of rowsum(P * P_bar)."""


@pull_back_otherwise
def subtract_mean(call: Call, mean: str) -> Iterator[Gradients]:
    yield call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=MEANS[mean](call))


@pull_back_otherwise
def take_mean_of_blocks(call: Call, keys: str, block: int) -> Iterator[Gradients]:
    K = call.steps.sizes[3]
    if block >= K:
        return
    starts = np.arange(0, K, block)
    blocks = np.add.reduceat(call.forward.weights * weights_bar(call), starts, axis=-1)
    blocks = blocks if keys == "each block of keys" else np.cumsum(blocks, axis=-1)
    mean = np.repeat(blocks, np.diff(starts, append=K), axis=-1)
    found = call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=mean)
    yield found._replace(sinks=call.gradients.sinks)


# --- the weights that are computed anew -------------------------------------------------------------------------------


def pull_back_weights(call: Call, weights: np.ndarray, share: np.ndarray | None = None) -> Iterator[Gradients]:
    """With the mean from the output or from these weights. share: of the sinks, instead of the right one."""
    for mean in (np.sum(call.cotangent() * call.forward.output, axis=-1, keepdims=True), None):
        found = call.steps.pull_back(call.case.cotangents, weights, mean=mean)
        yield found
        if found.sinks is not None and share is not None:
            yield found._replace(sinks=found.sinks * share / sink_share(call))


def sink_share(call: Call) -> np.ndarray:
    """What goes to the sink of each row, exp(sink - L)."""
    assert call.steps.sinks is not None
    return np.asarray(np.exp(call.steps.sinks - call.forward.logsumexp))


READINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "lacks the row's maximum": lambda logsumexp, maximum: logsumexp - maximum,
    "has the row's maximum twice": lambda logsumexp, maximum: logsumexp + maximum,
    "is the row's maximum alone": lambda logsumexp, maximum: maximum,
    "is in base 2, beside scores in base e": lambda logsumexp, maximum: logsumexp / LN2,
    "is in base e, beside scores in base 2": lambda logsumexp, maximum: logsumexp * LN2,
}


def weigh_by_logsumexp(call: Call, logsumexp: np.ndarray) -> Iterator[Gradients]:
    weights = np.where(call.steps.allowed, np.exp(call.forward.scores - logsumexp), 0)
    yield from pull_back_weights(
        call, weights, None if call.steps.sinks is None else np.exp(call.steps.sinks - logsumexp)
    )


@pull_back_otherwise
def misread_logsumexp(call: Call, reading: str) -> Iterator[Gradients]:
    maximum = row_maximum(call.forward.scores, call.steps.sinks)
    yield from weigh_by_logsumexp(call, READINGS[reading](call.forward.logsumexp, maximum))


@pull_back_otherwise
def round_logsumexp(call: Call, dtype: str) -> Iterator[Gradients]:
    yield from weigh_by_logsumexp(call, to_dtype(call.forward.logsumexp, dtype))


@pull_back_otherwise
def lose_digits(call: Call) -> Iterator[Gradients]:
    """Scores and log-sum-exp, natural or in base 2, have the digits of the compute dtype and no more."""
    form = compute_dtype_name(call.case.dtype)
    for base in (1.0, LN2):
        log = to_dtype(call.forward.logsumexp / base, form)
        weights = np.exp((to_dtype(call.forward.scores / base, form) - log) * base)
        sinks = call.steps.sinks
        share = None if sinks is None else np.exp((to_dtype(sinks / base, form) - log) * base)
        yield from pull_back_weights(call, np.where(call.steps.allowed, weights, 0), share)


@pull_back_otherwise
def take_stale_maximum(call: Call, block: int) -> Iterator[Gradients]:
    scores, sinks = call.forward.scores, call.steps.sinks
    before = (scores.shape[-1] - 1) // block * block
    if before > 0:
        grown = np.exp(row_maximum(scores, sinks) - row_maximum(scores[..., :before]))
        yield from pull_back_weights(call, call.forward.weights * grown)


@pull_back_otherwise
def share_row(call: Call, statistic: str, block: int) -> Iterator[Gradients]:
    first = np.arange(call.steps.sizes[2]) // block * block
    if statistic == "log-sum-exp":
        yield from weigh_by_logsumexp(call, call.forward.logsumexp[:, :, first])
    else:
        yield call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=row_mean(call)[:, :, first])


@pull_back_otherwise
def forget(call: Call, feature: str) -> Iterator[Gradients]:
    """Forget sinks or bias, which have no gradient then; the mean is from the output or from the wrong weights."""
    if feature not in call.case.inputs:
        return
    steps = call.steps.changed(sinks=None) if feature == "sinks" else call.steps.changed(bias=np.zeros((1, 1, 1, 1)))
    scores = steps.masked_scores()
    for weights in (steps.forward().weights, np.where(steps.allowed, np.exp(scores - call.forward.logsumexp), 0)):
        for mean in (np.sum(call.cotangent() * call.forward.output, axis=-1, keepdims=True), None):
            found = steps.pull_back(call.case.cotangents, weights, mean=mean)
            if feature == "sinks":
                yield found._replace(sinks=np.zeros((*weights.shape[:3], 1)))
            else:
                yield found._replace(scores=np.zeros_like(found.scores))


# --- the gradient of the scores ---------------------------------------------------------------------------------------


def pull_back_from(call: Call, scores: np.ndarray) -> Gradients:
    """The gradients that come of this one of the scores; those of values and sinks are right."""
    found = call.steps.pull_back_scores(scores, call.gradients.value, np.zeros_like(call.forward.logsumexp))
    return found._replace(sinks=call.gradients.sinks)


@pull_back_otherwise
def lose_bracket(call: Call) -> Iterator[Gradients]:
    products = call.forward.weights * weights_bar(call)
    scores = products - products.sum(axis=-1, keepdims=True)
    yield pull_back_from(call, np.where(call.steps.allowed, scores, 0))
    yield pull_back_from(call, scores)


@pull_back_otherwise
def leave_weights_out(call: Call) -> Iterator[Gradients]:
    yield pull_back_from(call, np.where(call.steps.allowed, weights_bar(call) - row_mean(call), 0))


@pull_back_otherwise
def reach_empty_rows(call: Call) -> Iterator[Gradients]:
    steps = call.steps
    if steps.empty_rows in ("zero", "any") and not steps.allowed.any(axis=-1).all():
        filled = steps.changed(empty_rows="mean").pull_back(call.case.cotangents, call.forward.weights)
        yield call.gradients._replace(value=filled.value)


@pull_back_otherwise
def spread_nan(call: Call) -> Iterator[Gradients]:
    """NaN as automatic differentiation of a guarded softmax has it: in the row's query alone, or in what it meets."""
    empty, right = ~call.steps.allowed.any(axis=-1, keepdims=True), call.gradients
    if call.steps.empty_rows not in ("zero", "any") or not empty.any():
        return
    query, scores = (np.where(empty, np.nan, array) for array in (right.query, right.scores))
    everywhere = empty.any(axis=2, keepdims=True)
    key = np.where(everywhere, np.nan, right.key)
    yield right._replace(query=query)
    yield right._replace(query=query, scores=scores)
    yield right._replace(query=query, key=key, scores=scores)
    if right.value is not None:
        value = np.where(everywhere, np.nan, right.value)
        yield right._replace(query=query, key=key, scores=scores, value=value)
        yield right._replace(value=value)


@pull_back_otherwise
def round_before_products(call: Call, array: str, dtype: str) -> Iterator[Gradients]:
    steps, right = call.steps, call.gradients
    if array == "S_bar":
        found = pull_back_from(call, to_dtype(right.scores, dtype))
        yield found
        yield found._replace(scores=right.scores)
    elif array == "P_bar":
        yield pull_back_from(call, call.forward.weights * (to_dtype(weights_bar(call), dtype) - row_mean(call)))
    else:
        weights = to_dtype(steps.fill_empty_rows(call.forward.weights) * steps.factor, dtype)
        yield right._replace(value=weights.swapaxes(-1, -2) @ call.cotangent())


def slope_of(call: Call) -> np.ndarray | float:
    cap = call.steps.softcap
    return 1.0 if cap is None else np.asarray(1 - np.tanh(call.steps.products() / cap) ** 2)


SLOPES: dict[str, Callable[[Call], Any]] = {
    "missing": lambda call: 1.0,
    "1 - s^2 of the capped scores s": lambda call: 1 - call.steps.cap(call.steps.products()) ** 2,
    "divided by the softcap": lambda call: slope_of(call) / call.steps.softcap,
    "multiplied by the softcap": lambda call: slope_of(call) * call.steps.softcap,
}


@pull_back_otherwise
def take_slope(call: Call, slope: str) -> Iterator[Gradients]:
    if call.steps.softcap is not None:
        found = call.steps.pull_back_scores(
            call.gradients.scores * SLOPES[slope](call), call.gradients.value, call.forward.logsumexp, slope=False
        )
        yield found._replace(scores=call.gradients.scores, sinks=call.gradients.sinks)


@pull_back_otherwise
def forget_transpose(call: Call) -> Iterator[Gradients]:
    steps, right, (_, _, Q, K) = call.steps, call.gradients, call.steps.sizes
    if Q != K:
        return
    key = (right.scores * slope_of(call)) @ steps.query * steps.scale
    value = (steps.fill_empty_rows(call.forward.weights) * steps.factor) @ call.cotangent()
    yield from (right._replace(key=key), right._replace(value=value), right._replace(key=key, value=value))


@pull_back_otherwise
def use_weights(call: Call, of: str) -> Iterator[Gradients]:
    steps, weights = call.steps, call.forward.weights
    found = weights @ steps.keys if of == "query" else weights.swapaxes(-1, -2) @ steps.query
    for factor in (steps.scale, 1.0):
        yield call.gradients._replace(**{of: factor * found})


@pull_back_otherwise
def forget_dropout(call: Call, of: str) -> Iterator[Gradients]:
    steps, weights, cotangents = call.steps, call.forward.weights, call.case.cotangents
    if call.case.options.get("dropout_keep") is None:
        return
    if of == "values":
        yield steps.pull_back(cotangents, weights, value_factor=1.0)
        return
    for mean in (None, row_mean(call)):
        value_factor = steps.factor if of == "weights" else 1.0
        yield steps.changed(factor=1.0).pull_back(cotangents, weights, mean=mean, value_factor=value_factor)


# --- the cotangents ---------------------------------------------------------------------------------------------------


def shuffle_axes(cotangent: np.ndarray) -> np.ndarray:
    return cotangent.swapaxes(1, 2).reshape(cotangent.shape)


COTANGENTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ones": np.ones_like,
    "that of the first row, for all rows": lambda bar: np.broadcast_to(bar[:, :, :1], bar.shape),
    "that of the first batch element, for all of them": lambda bar: np.broadcast_to(bar[:1], bar.shape),
    "read as [B, H, Q, V] from memory that holds [B, Q, H, V]": shuffle_axes,
}


@pull_back_otherwise
def take_cotangent(call: Call, cotangent: str) -> Iterator[Gradients]:
    changed = COTANGENTS[cotangent](call.case.cotangents["output"])
    yield call.steps.pull_back(call.case.cotangents | {"output": changed}, call.forward.weights)


LOGSUMEXP_FACTORS = {"left out": 0.0, "of the other sign": -1.0, "multiplied by ln 2": LN2, "divided by ln 2": 1 / LN2}


@pull_back_otherwise
def take_logsumexp_cotangent(call: Call, how: str) -> Iterator[Gradients]:
    bar = call.case.cotangents.get("logsumexp")
    if bar is None:
        return
    if how == "added outside the bracket":
        found = call.steps.pull_back(call.case.cotangents | {"logsumexp": 0 * bar}, call.forward.weights)
        scores = np.where(call.steps.allowed, found.scores + bar[..., None], 0)
        yield pull_back_from(call, scores)._replace(sinks=found.sinks)
        return
    bars = call.case.cotangents | {"logsumexp": LOGSUMEXP_FACTORS[how] * bar}
    found = call.steps.pull_back(bars, call.forward.weights)
    yield found
    yield found._replace(sinks=call.gradients.sinks)


def count_padded_queries(call: Call) -> Prediction | None:
    """Pull back what follows the queries of a sequence, too; its own gradient is not compared."""
    case = call.case
    if "query_lengths" not in case.inputs or not case.cotangents or case.special:
        return None
    whole = replace(case, inputs={name: array for name, array in case.inputs.items() if name != "query_lengths"})
    steps = AttentionSteps.of_case(whole)
    gradients = steps.pull_back(case.cotangents, steps.forward().weights)
    found = with_bounds(call, steps.sum_gradients(gradients, case.inputs))
    query, padded = gradient_name("query"), padded_queries(case)[:, None, :, None]
    if query not in found.bounds:
        return found
    return found._replace(bounds=found.bounds | {query: np.where(padded, np.inf, found.bounds[query])})


# --- gradients as a whole ---------------------------------------------------------------------------------------------


def names_in(of: str) -> tuple[str, ...]:
    return INPUTS if of == "every input" else tuple(of.split(" and "))


@replace_gradients
def lose_gradient(call: Call, of: str) -> Iterator[Results]:
    yield {name: 0 * call.right[gradient_name(name)] for name in names_in(of) if gradient_name(name) in call.right}


def given_rate(call: Call) -> float:
    return float(call.case.options.get("dropout_rate") or 0)


FACTORS: dict[str, Callable[[Call], float]] = {
    "1 / scale": lambda call: 1 / call.steps.scale,
    "the scale": lambda call: call.steps.scale,
    "1 / sqrt(D) / scale": lambda call: call.steps.query.shape[-1] ** -0.5 / call.steps.scale,
    "-1": lambda call: -1.0,
    "2": lambda call: 2.0,
    "1/2": lambda call: 0.5,
    "1 - rate": lambda call: 1 - given_rate(call),
    "1 / (1 - rate)": lambda call: 1 / (1 - given_rate(call)),
    "ln 2": lambda call: LN2,
    "1 / ln 2": lambda call: 1 / LN2,
    "1 / the batch size": lambda call: 1 / max(call.steps.sizes[0], 1),
}


@replace_gradients
def multiply_gradient(call: Call, of: str, factor: str) -> Iterator[Results]:
    number = FACTORS[factor](call)
    names = [name for name in names_in(of) if gradient_name(name) in call.right]
    if np.isfinite(number) and number != 1:
        yield {name: number * call.right[gradient_name(name)] for name in names}


@replace_gradients
def exchange_gradients(call: Call, pair: str) -> Iterator[Results]:
    first, second = names_in(pair)
    left, right = call.right.get(gradient_name(first)), call.right.get(gradient_name(second))
    if left is not None and right is not None and left.shape == right.shape:
        yield {first: right, second: left}


AXES = {"batch element": -4, "head": -3, "query": -2, "key": -2, "column": -1}
"""Axes of the gradients of query, key and value; the bias has keys along its last axis."""


def axis_of(of: str, axis: str) -> int | None:
    if of == "sinks":
        return 0 if axis == "head" else None
    if of == "bias":
        return None if axis == "column" else -1 if axis == "key" else AXES[axis]
    return None if axis == ("key" if of == "query" else "query") else AXES[axis]


def clear_from(call: Call, of: str, axis: str, first: Callable[[int], int]) -> Iterator[Results]:
    right, place = call.right.get(gradient_name(of)), axis_of(of, axis)
    if right is not None and place is not None and right.ndim >= -place:
        size = right.shape[place]
        kept = np.arange(size) < first(size)
        yield {of: np.where(np.expand_dims(kept, tuple(range(place + 1, 0))) if place < 0 else kept, right, 0)}


@replace_gradients
def stop_at(call: Call, of: str, axis: str, first: int) -> Iterator[Results]:
    yield from clear_from(call, of, axis, lambda size: first)


@replace_gradients
def leave_tail(call: Call, of: str, axis: str, block: int) -> Iterator[Results]:
    yield from clear_from(call, of, axis, lambda size: size // block * block)


# --- sums over heads, rows and batch elements -------------------------------------------------------------------------


def divide_interleaved_heads(H: int, G: int) -> np.ndarray:
    """Write interleaved head h, which reads key head h % G, to place h % S * S + h // S, as if there were S key heads.

    A later head overwrites an earlier one, and what lies past the last place is lost.
    """
    S, counted = H // G, np.zeros((G, H))
    writers = {h % S * S + h // S: h % G * S + h // G for h in range(H)}
    for place, head in writers.items():
        if place < H:
            counted[place // S, head] = 1
    return counted


def match_heads(reader: Callable[[np.ndarray, int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """Count query head h for the key head reader(h, G, S)."""
    return lambda H, G: (np.arange(G)[:, None] == reader(np.arange(H), G, H // G)).astype(float)


def weigh_members(weight: Callable[[np.ndarray, int], Any]) -> Callable[[int, int], np.ndarray]:
    """Count member s of each group of S weight(s, S) times."""
    own = match_heads(lambda h, G, S: h // S)
    return lambda H, G: own(H, G) * weight(np.arange(H) % (H // G), H // G)


COUNTED: dict[str, Callable[[int, int], np.ndarray]] = {
    "the last query head of each group only": weigh_members(lambda s, S: s == S - 1),
    "the first query head of each group only": weigh_members(lambda s, S: s == 0),
    "the mean of each group's query heads": weigh_members(lambda s, S: 1 / S),
    "the first query head of each group twice": weigh_members(lambda s, S: 1 + (s == 0)),
    "the last query head of each group twice": weigh_members(lambda s, S: 1 + (s == S - 1)),
    "all but the last query head of each group": weigh_members(lambda s, S: s < S - 1),
    "query heads h, h + G, h + 2 G, ...": match_heads(lambda h, G, S: h % G),
    "the query heads h whose h // G is the key head": match_heads(lambda h, G, S: h // G),
    "the query heads h whose h % S is the key head": match_heads(lambda h, G, S: h % S),
    "interleaved query heads divided by their number in a group": divide_interleaved_heads,
}
"""How often query heads count for the gradients of key heads, [G, H]. S is the number of query heads in a group."""


@replace_gradients
def count_heads(call: Call, of: str, heads: str) -> Iterator[Results]:
    (_, H, _, _), G = call.steps.sizes, call.steps.key.shape[1]
    if 0 < G < H:
        parts: dict[str, Any] = {"key": call.gradients.key, "value": call.gradients.value}
        counted = COUNTED[heads](H, G)
        yield {
            name: np.einsum("gh,bhkw->bgkw", counted, parts[name]) for name in names_in(of) if parts[name] is not None
        }


SUMS = (
    "bias over batch elements",
    "bias over heads",
    "sinks over batch elements",
    "sinks over queries",
    "key over queries",
    "value over queries",
    "query over keys",
)
ALONG = {"batch elements": 0, "heads": 1, "queries": 2, "keys": 3}


def count_terms(call: Call, of: str, along: str) -> int:
    """Return how many terms the sum has; 0 where this gradient is no such sum."""
    summed = gradient_name(of) in call.right and (of != "bias" or call.steps.bias.shape[ALONG[along]] == 1)
    return call.steps.sizes[ALONG[along]] if summed else 0


def sum_terms(call: Call, of: str, along: str, places: Any) -> np.ndarray:
    """Return the part of a gradient that these batch elements, heads, queries or keys add to it."""
    steps, right = call.steps, call.gradients
    some = (*[slice(None)] * ALONG[along], places)
    if of in ("bias", "sinks"):
        terms: Any = right.scores if of == "bias" else right.sinks
        shape = call.right[gradient_name(of)].shape
        bias = steps.bias.shape if of == "bias" else (1, terms.shape[1], 1, 1)
        axes = tuple(axis for axis in range(4) if bias[axis] == 1)
        return np.asarray(terms[some].sum(axis=axes)).reshape(shape)
    if of == "value":
        weights = steps.fill_empty_rows(call.forward.weights) * steps.factor
        return steps.sum_over_groups(weights[some].swapaxes(-1, -2) @ call.cotangent()[some])
    products = (right.scores * slope_of(call))[some] * steps.scale
    if of == "query":
        return np.asarray(products @ steps.keys[:, :, places])
    return steps.sum_over_groups(products.swapaxes(-1, -2) @ steps.query[some])


TERMS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "the first block": lambda i, count, n: i < n,
    "the last block": lambda i, count, n: i >= (count - 1) // n * n,
    "all but the first block": lambda i, count, n: i >= n,
    "all but the last block": lambda i, count, n: i < (count - 1) // n * n,
    "whole blocks": lambda i, count, n: i < count // n * n,
    "the first of every block": lambda i, count, n: i % n == 0,
    "the last of every block": lambda i, count, n: i % n == n - 1,
}


@replace_gradients
def take_terms(call: Call, sum: str, terms: str, block: int) -> Iterator[Results]:
    of, along = sum.split(" over ")
    count = count_terms(call, of, along)
    kept = TERMS[terms](np.arange(count), count, block)
    if count and not kept.all():
        yield {of: sum_terms(call, of, along, kept)}


MOST = 2**22
"""Numbers that are rounded for one sum in 16 bits, at most."""


@replace_gradients
def sum_in_16_bits(call: Call, sum: str, dtype: str, block: int) -> Iterator[Results]:
    """Each block is rounded before it is added, or their sum alone."""
    of, along = sum.split(" over ")
    count = count_terms(call, of, along)
    if block >= count or expected_dtype(gradient_name(of), call.case) not in ("float32", dtype):
        return
    if -(-count // block) * call.right[gradient_name(of)].size > MOST:
        return
    parts = [sum_terms(call, of, along, slice(start, start + block)) for start in range(0, count, block)]
    for addends in ([to_dtype(part, dtype) for part in parts], parts):
        total = np.zeros_like(parts[0])
        for part in addends:
            total = to_dtype(total + part, dtype)
        yield {of: total}


@replace_gradients
def round_gradient(call: Call, of: str, dtype: str) -> Iterator[Results]:
    """Round the sum, or each query head's part before these are added up."""
    right, parts = call.right.get(gradient_name(of)), {"key": call.gradients.key, "value": call.gradients.value}
    if right is not None and expected_dtype(gradient_name(of), call.case) != dtype:
        yield {of: to_dtype(right, dtype)}
    part = parts.get(of)
    if right is not None and part is not None and part.shape != right.shape:
        yield {of: call.steps.sum_over_groups(to_dtype(part, dtype))}


# --- bias and sinks ---------------------------------------------------------------------------------------------------


def forget_mask(call: Call) -> np.ndarray:
    steps = call.steps.changed(visible=np.ones_like(call.steps.visible))
    return steps.pull_back(call.case.cotangents, steps.forward().weights).scores


BIASES: dict[str, Callable[[Call], list[np.ndarray]]] = {
    "multiplied by the slope of the softcap": lambda call: [call.gradients.scores * slope_of(call)],
    "that of the weights": lambda call: [weights_bar(call), np.where(call.steps.allowed, weights_bar(call), 0)],
    "without the mean rowsum(P * P_bar)": lambda call: [call.forward.weights * weights_bar(call)],
    "that of the softmax without the mask": lambda call: [forget_mask(call)],
}


@pull_back_otherwise
def take_bias(call: Call, how: str) -> Iterator[Gradients]:
    if "bias" in call.case.inputs:
        yield from (call.gradients._replace(scores=scores) for scores in BIASES[how](call))


@replace_gradients
def average_bias(call: Call) -> Iterator[Results]:
    if "bias" in call.case.inputs:
        bar = call.right[gradient_name("bias")]
        yield {"bias": bar * bar.size / max(call.steps.visible.size, 1)}


@replace_gradients
def spoil_bias(call: Call) -> Iterator[Results]:
    if "bias" in call.case.inputs:
        infinite = call.case.inputs["bias"] == -np.inf
        yield {"bias": np.where(infinite, np.nan, call.right[gradient_name("bias")])}


def lose_sink(call: Call) -> np.ndarray:
    """The log-sum-exp of the keys alone."""
    return call.steps.changed(sinks=None).forward().logsumexp


SHARES: dict[str, Callable[[Call, np.ndarray, np.ndarray], np.ndarray]] = {
    "exp2(sink - L / ln 2)": lambda call, sink, L: np.exp(sink * LN2 - L),
    "exp(sink - L / ln 2)": lambda call, sink, L: np.exp(sink - L / LN2),
    "exp(sink / ln 2 - L)": lambda call, sink, L: np.exp(sink / LN2 - L),
    "exp2(sink - L)": lambda call, sink, L: np.exp2(sink - L),
    "exp(sink - maximum)": lambda call, sink, L: np.exp(sink - row_maximum(call.forward.scores, sink)),
    "exp(sink)": lambda call, sink, L: np.exp(sink + 0 * L),
    "exp(sink - L) with L of the keys alone": lambda call, sink, L: np.exp(sink - lose_sink(call)),
    "1": lambda call, sink, L: np.ones_like(L),
    "exp(scale * sink - L)": lambda call, sink, L: np.exp(call.steps.scale * sink - L),
    "P (1 - P) with P = exp(sink - L)": lambda call, sink, L: np.exp(sink - L) * (1 - np.exp(sink - L)),
}


@pull_back_otherwise
def take_share(call: Call, share: str) -> Iterator[Gradients]:
    if call.steps.sinks is not None:
        other = SHARES[share](call, call.steps.sinks, call.forward.logsumexp)
        yield call.gradients._replace(sinks=call.gradients.sinks / sink_share(call) * other)


HEADS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "the sum over the query heads of a group": lambda sinks, G: np.repeat(sinks.reshape(G, -1).sum(1), len(sinks) // G),
    "that of head h % G": lambda sinks, G: sinks.reshape(G, -1).T.ravel(),
    "the sum over all heads": lambda sinks, G: np.full_like(sinks, sinks.sum()),
}


@replace_gradients
def exchange_heads(call: Call, heads: str) -> Iterator[Results]:
    sinks, G = call.right.get(gradient_name("sinks")), call.steps.key.shape[1]
    if sinks is not None and 0 < G < len(sinks):
        yield {"sinks": HEADS[heads](sinks, G)}


@pull_back_otherwise
def leave_mean_out(call: Call) -> Iterator[Gradients]:
    if call.steps.sinks is not None:
        yield call.gradients._replace(sinks=-sink_share(call))


# --- the entries ------------------------------------------------------------------------------------------------------


def entry(
    name: str,
    says: str,
    change: Change,
    rule: str = "ATT-12",
    operations: tuple[str, ...] = ("attention",),
    **parameters: Sequence[Any],
) -> Mistake:
    return Mistake(f"backward.{name}", rule, says, change, operations, parameters)


SIZES = (64, 16, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65535)
MISTAKES = (
    # The mean that is subtracted, and weights that are computed anew
    entry("mean", "the backward pass subtracts {mean}, not rowsum(P * P_bar)", subtract_mean, mean=tuple(MEANS)),
    entry("mean-of-blocks", "rowsum(P * P_bar) is taken over {keys}, not over the row (blocks of {block} keys)",
          take_mean_of_blocks, keys=("each block of keys", "the blocks of keys so far"), block=(8, *BLOCKS)),
    entry("logsumexp-misread", "the log-sum-exp of the backward pass {reading}", misread_logsumexp,
          reading=tuple(READINGS)),
    entry("logsumexp-rounded", "the backward pass takes the weights from a log-sum-exp in {dtype}", round_logsumexp,
          dtype=HALF[::-1]),
    entry("logsumexp-beside-large-scores", "the backward pass takes the weights from one log-sum-exp for each row, "
          "which loses digits beside large scores", lose_digits, "ATT-4"),
    entry("stale-maximum", "the backward pass rescales with the maximum before the last block (blocks of {block} keys)",
          take_stale_maximum, block=(8, *BLOCKS)),
    entry("row-shared", "the {statistic} of the first row of every block of {block} stands for all of its rows in the "
          "backward pass", share_row, statistic=("log-sum-exp", "mean rowsum(P * P_bar)"), block=BLOCKS),
    entry("feature-forgotten", "the backward pass knows nothing of the {feature}", forget, feature=("sinks", "bias")),
    # The gradient of the scores
    entry("bracket-lost", "the gradient of the scores is P * P_bar - rowsum(P * P_bar), without a bracket after P",
          lose_bracket),
    entry("weights-left-out", "the gradient of the scores is P_bar - rowsum(P * P_bar), not multiplied by P",
          leave_weights_out),
    entry("empty-rows-reach-values", "a row that allows no key passes its gradient on to the values, as if it were "
          "filled with their mean", reach_empty_rows, "ATT-6"),
    entry("empty-rows-nan", "rows that allow no key give NaN in gradients", spread_nan, "ATT-6", DIFFERENTIATED),
    entry("rounded-before-products", "{array} is rounded to {dtype} in the backward pass", round_before_products,
          array=("S_bar", "P_bar", "P"), dtype=HALF),
    entry("slope", "the slope of the softcap is {slope} in the backward pass", take_slope, "ATT-2", DIFFERENTIATED,
          slope=tuple(SLOPES)),
    entry("transpose-forgotten", "the gradient of key or value is computed without a transpose", forget_transpose),
    entry("weights-for-scores", "the gradient of {of} is computed from the weights, not from the gradient of the "
          "scores", use_weights, of=("query", "key")),
    entry("dropout-forgotten", "dropout is missing in the gradient of {of}", forget_dropout, "ATT-11",
          of=("values", "weights", "values and weights")),
    # Cotangents
    entry("cotangent", "the cotangent in the backward pass is {cotangent}", take_cotangent,
          cotangent=tuple(COTANGENTS)),
    entry("logsumexp-cotangent", "the cotangent of the log-sum-exp beside the output is {how}",
          take_logsumexp_cotangent, "ATT-14", how=(*LOGSUMEXP_FACTORS, "added outside the bracket")),
    entry("padded-queries", "query_lengths are ignored: what follows the queries of a sequence counts in the gradients",
          count_padded_queries, "MASK-2"),
    # Gradients as a whole
    entry("missing", "the gradient of {of} is missing: it is 0", lose_gradient, operations=DIFFERENTIATED,
          of=(*INPUTS, "query and key", "bias and sinks", "every input")),
    entry("factor", "the gradient of {of} is multiplied by {factor}", multiply_gradient, operations=DIFFERENTIATED,
          of=(*INPUTS, "query and key", "every input"), factor=tuple(FACTORS)),
    entry("exchanged", "the gradients of {pair} are exchanged", exchange_gradients,
          pair=("key and value", "query and key", "query and value")),
    entry("zero-past", "the gradient of {of} is 0 from {axis} {first} on", stop_at, operations=DIFFERENTIATED,
          of=("key", "query", "value", "bias", "sinks"), axis=("key", "query", "head", "column", "batch element"),
          first=SIZES),
    entry("tail-zero", "the gradient of {of} is 0 in a last tile of less than {block} along the {axis} axis",
          leave_tail, of=("key", "query", "value", "bias"), axis=("key", "query", "column"), block=(32, *BLOCKS)),
    # Sums over heads, rows and batch elements
    entry("heads", "the gradient of {of} counts {heads}", count_heads, "ATT-7", of=("key and value", "key", "value"),
          heads=tuple(COUNTED)),
    entry("terms", "the gradient of {sum} comes from {terms} only (blocks of {block})", take_terms, sum=SUMS,
          terms=tuple(TERMS), block=(1, *BLOCKS)),
    entry("sum-in-16-bits", "the gradient of {sum} is added up in {dtype} (blocks of {block})", sum_in_16_bits,
          sum=SUMS, dtype=HALF, block=(1, *BLOCKS)),
    entry("rounded", "the gradient of {of} is rounded to {dtype}", round_gradient,
          of=("bias", "sinks", "key", "value", "query"), dtype=HALF),
    # Bias and sinks
    entry("bias", "the gradient of bias is {how}", take_bias, how=tuple(BIASES)),
    entry("bias-averaged", "the gradient of bias is averaged over the axes along which it is broadcast", average_bias),
    entry("bias-nan", "the gradient of bias is NaN where it is -inf", spoil_bias, "ATT-3"),
    entry("sink-share", "the gradient of a sink takes {share} for its share of the weights", take_share,
          operations=DIFFERENTIATED, share=tuple(SHARES)),
    entry("sink-heads", "the gradient of each sink is {heads}", exchange_heads, operations=DIFFERENTIATED,
          heads=tuple(HEADS)),
    entry("sink-without-mean", "the gradient of sinks is not multiplied by rowsum(P * P_bar)", leave_mean_out,
          operations=DIFFERENTIATED),
)  # fmt: skip
ENTRIES = {mistake.id.removeprefix("backward."): mistake for mistake in MISTAKES}


def plant(name: str, **values: Any) -> Mistake:
    return ENTRIES[name].choose(**values)


def plant_each(name: str, parameter: str) -> tuple[Mistake, ...]:
    """Plant an entry with every value of a parameter but the first."""
    entry = ENTRIES[name]
    return tuple(entry.choose(**{parameter: value}) for value in entry.parameters[parameter][1:])


IGNORED = next(mistake for mistake in masks.MISTAKES if mistake.id == "masks.ignored")
LOGSUMEXP = {"rule": "ATT-14", "operations": ("attention_logsumexp",)}
PLANTED = (
    # No subject that is planted returns the log-sum-exp beside the output, or takes lengths of queries.
    *(m.choose() for m in MISTAKES if m.id not in ("backward.logsumexp-cotangent", "backward.padded-queries")),
    *(one for name, parameter in (
        ("mean", "mean"), ("logsumexp-misread", "reading"), ("rounded-before-products", "array"), ("slope", "slope"),
        ("row-shared", "statistic"), ("weights-for-scores", "of"), ("dropout-forgotten", "of"),
        ("cotangent", "cotangent"), ("missing", "of"), ("heads", "heads"), ("terms", "terms"), ("bias", "how"),
        ("sink-share", "share"), ("sink-heads", "heads"), ("feature-forgotten", "feature"), ("rounded", "of"),
        ("sum-in-16-bits", "sum"), ("terms", "sum"), ("mean-of-blocks", "keys"),
    ) for one in plant_each(name, parameter)),
    *(plant("factor", of=of, factor=factor) for of, factor in (
        ("bias", "the scale"), ("sinks", "-1"), ("query and key", "ln 2"), ("every input", "1 / the batch size"))),
    replace(plant("factor", of="key", factor="1 / sqrt(D) / scale"), rule="ATT-1"),
    replace(plant("factor", of="value", factor="1 - rate"), rule="ATT-11"),
    replace(plant("slope"), **LOGSUMEXP),
    replace(plant("missing", of="sinks"), **LOGSUMEXP),
    *(plant("zero-past", of=of, axis=axis, first=first) for of, axis, sizes in (
        ("value", "key", (128, 1024, 32768)), ("key", "key", (256, 4096, 65535)), 
         ("query", "query", (128, 1024, 16384)),
        ("key", "column", (64, 128, 256)), ("value", "column", (64, 256)), ("query", "head", (16, 32, 64)),
        ("key", "batch element", (64, 1024, 65535)), ("bias", "key", (64, 1024, 8192)), ("sinks", "head", (16, 64)),
    ) for first in sizes),
    *(plant("tail-zero", of=of, axis=of, block=n).under(past(of[0].upper(), n, partial=True))
      for of in ("key", "query") for n in (32, 128)),
    *(plant("terms", sum="bias over heads", terms="the last block", block=n) for n in (8, 32)),
    *(plant("factor", of="query", factor="1/2").under(past("K", n)) for n in (64, 4096)),
    *(plant("heads", of="key", heads="the first query head of each group only").under(Condition("S", n - 1, up_to=n))
      for n in (3, 8)),
    plant("heads", of="value", heads="the first query head of each group only").under(past("S", 7)),
    *(plant("terms", terms="the first block").under(past("K", n)) for n in (32, 2048)),
    *(plant("missing", of="sinks").under(past("K", n)) for n in (64, 1024, 16384)),
    *(IGNORED.under(Condition(axis, size, passes="backward")) for axis, size in (("", 0), ("K", 64), ("K", 1024))),
)  # fmt: skip
"""Every entry with the first values, every value of most parameters, and some past a size."""
