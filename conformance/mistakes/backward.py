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
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np

from conformance.cases.arguments import expected_dtype, gradient_name
from conformance.mistakes import masks
from conformance.mistakes.attention_steps import AttentionSteps, Gradients, row_maximum
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import round_to
from conformance.mistakes.condition import ALWAYS, Condition, past
from conformance.mistakes.mistake import ATTENTION, Mistake, Topic, name_entries
from specification.dtypes import HALF, compute_dtype_name

INPUTS = ("query", "key", "value", "bias", "sinks")
BLOCKS = (64, 2, 4, 8, 16, 32, 48, 80, 96, 128, 160, 192, 256, 512)
"""Rows or keys that a step of a kernel goes through."""
LN2 = float(np.log(2))


TOPIC = Topic("backward", "ATT-12", ("attention",), of_gradients=True)
NEEDS = ("gradients", "finite")


Ways = Callable[..., Iterable[Gradients | Results]]


def entry(name: str, says: str, ways: Ways, /, needs: tuple[str, ...] = (), **fields: Any) -> Mistake:
    """Sum up each way's gradients, or put its sums, by names of inputs, in place of the right ones.

    Nothing is predicted where no gradient is asked for, or NaN may stand behind a mask.
    """

    def change(call: Call, **values: object) -> list[Results]:
        right = {name: array for name, array in call.right.items() if name.startswith("gradient of ")}
        found = []
        for way in ways(call, **values):
            if isinstance(way, Gradients):
                found.append(call.steps.sum_gradients(way, call.case.inputs))
            else:
                wrong = {gradient_name(name): array for name, array in way.items() if gradient_name(name) in right}
                found += [right | wrong] if wrong else []
        return found

    return TOPIC.entry(name, says, change, needs=(*NEEDS, *needs), **fields)


# --- the mean that is subtracted --------------------------------------------------------------------------------------


def weights_bar(call: Call) -> np.ndarray:
    """P_bar, the gradient of the weights before dropout."""
    if call.steps.operation == "attention_weights":
        return call.cotangent()
    return np.asarray((call.cotangent() @ call.steps.values.swapaxes(-1, -2)) * call.steps.factor)


def sum_row(array: np.ndarray) -> np.ndarray:
    return np.asarray(np.sum(array, axis=-1, keepdims=True))


def row_mean(call: Call) -> np.ndarray:
    """rowsum(P * P_bar), [B, H, Q, 1]."""
    return sum_row(call.forward.weights * weights_bar(call))


def centre(call: Call) -> np.ndarray:
    """rowsum(P * P_bar) - L_bar."""
    if call.steps.operation == "attention_logsumexp":
        return -call.cotangent()[..., None]
    mean, bar = row_mean(call), call.case.cotangents.get("logsumexp")
    return mean if bar is None else mean - bar[..., None]


MEANS: dict[str, Callable[[Call], np.ndarray]] = {
    "nothing": lambda call: np.zeros_like(call.forward.logsumexp),
    "scale * rowsum(P * P_bar)": lambda call: row_mean(call) * call.steps.scale,
    "the plain mean of P_bar over the allowed keys": lambda call: (
        sum_row(weights_bar(call) * call.steps.allowed_pairs) / np.maximum(sum_row(call.steps.allowed_pairs), 1)
    ),
    "rowsum(P * P_bar) with P_bar before dropout": lambda call: sum_row(
        call.forward.weights * (call.cotangent() @ call.steps.values.swapaxes(-1, -2))
    ),
    "rowsum(O_bar * O) before the output is divided by its sum": lambda call: (
        row_mean(call) * call.steps.exponentials(call.forward.scores)[1]
    ),
    "rowsum(O_bar * O) of the output as it is returned": lambda call: sum_row(
        call.cotangent() * round_to(call.forward.output, call.case.dtype)
    ),
}
"""What is subtracted from P_bar in place of rowsum(P * P_bar)."""


def take_mean_of_blocks(call: Call, keys: str, block: int) -> Iterator[Gradients]:
    K = call.steps.sizes[3]
    if block < K:
        starts = np.arange(0, K, block)
        means = np.add.reduceat(call.forward.weights * weights_bar(call), starts, axis=-1)
        means = means if keys == "each block of keys" else np.cumsum(means, axis=-1)
        mean = np.repeat(means, np.diff(starts, append=K), axis=-1)
        found = call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=mean)
        yield found._replace(sinks=call.gradients.sinks)


# --- the weights that are computed anew -------------------------------------------------------------------------------


def pull_back_weights(
    call: Call, weights: np.ndarray, share: np.ndarray | None = None, steps: AttentionSteps | None = None
) -> Iterator[Gradients]:
    """With the mean from the output or from these weights.

    Args:
        share: of the sinks, instead of the right one.
        steps: through which gradients flow, instead of the right ones.
    """
    for mean in (sum_row(call.cotangent() * call.forward.output), None):
        found = (steps or call.steps).pull_back(call.case.cotangents, weights, mean=mean)
        yield found
        if found.sinks is not None and share is not None:
            yield found._replace(sinks=found.sinks * share / np.exp(call.steps.sinks - call.forward.logsumexp))


READINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "lacks the row's maximum": lambda L, maximum: L - maximum,
    "is the row's maximum alone": lambda L, maximum: maximum,
    "is in base 2, beside scores in base e": lambda L, maximum: L / LN2,
    "is in base e, beside scores in base 2": lambda L, maximum: L * LN2,
    "is rounded to bfloat16": lambda L, maximum: round_to(L, "bfloat16"),
    "is rounded to float16": lambda L, maximum: round_to(L, "float16"),
}


def weigh_by_logsumexp(call: Call, logsumexp: np.ndarray) -> Iterator[Gradients]:
    weights = np.where(call.steps.allowed_pairs, np.exp(call.forward.scores - logsumexp), 0)
    share = None if call.steps.sinks is None else np.exp(call.steps.sinks - logsumexp)
    yield from pull_back_weights(call, weights, share)


def lose_digits(call: Call) -> Iterator[Gradients]:
    """Scores and log-sum-exp, natural or in base 2, have the digits of the compute dtype and no more."""
    form = compute_dtype_name(call.case.dtype)
    for base in (1.0, LN2):
        log = round_to(call.forward.logsumexp / base, form)
        weights = np.exp((round_to(call.forward.scores / base, form) - log) * base)
        sinks = call.steps.sinks
        share = None if sinks is None else np.exp((round_to(sinks / base, form) - log) * base)
        yield from pull_back_weights(call, np.where(call.steps.allowed_pairs, weights, 0), share)


def share_row(call: Call, statistic: str, block: int) -> Iterator[Gradients]:
    first = np.arange(call.steps.sizes[2]) // block * block
    if statistic == "log-sum-exp":
        yield from weigh_by_logsumexp(call, call.forward.logsumexp[:, :, first])
    else:
        yield call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=row_mean(call)[:, :, first])


def forget(call: Call, feature: str) -> Iterator[Gradients]:
    """Forget sinks or bias, which have no gradient then; the mean is from the output or from the wrong weights."""
    if feature not in call.case.inputs:
        return
    steps = call.steps.change(sinks=None) if feature == "sinks" else call.steps.change(bias=np.zeros((1, 1, 1, 1)))
    scores = steps.masked_scores()
    for weights in (steps.forward().weights, np.where(steps.allowed_pairs, np.exp(scores - call.forward.logsumexp), 0)):
        nothing = np.zeros_like(weights[..., :1] if feature == "sinks" else weights)
        for found in pull_back_weights(call, weights, steps=steps):
            yield found._replace(**{"sinks" if feature == "sinks" else "scores": nothing})


# --- the gradient of the scores ---------------------------------------------------------------------------------------


def pull_back_from(call: Call, scores: np.ndarray) -> Gradients:
    """The gradients that come of this one of the scores; those of values and sinks are right."""
    found = call.steps.pull_back_scores(scores, call.gradients.value, np.zeros_like(call.forward.logsumexp))
    return found._replace(sinks=call.gradients.sinks)


SCORES: dict[str, Callable[[Call], np.ndarray]] = {
    "P * P_bar - rowsum(P * P_bar), without a bracket after P": lambda call: (
        call.forward.weights * weights_bar(call) - centre(call)
    ),
    "P_bar - rowsum(P * P_bar), not multiplied by P": lambda call: weights_bar(call) - centre(call),
    "rounded to float16": lambda call: round_to(call.gradients.scores, "float16"),
    "rounded to bfloat16": lambda call: round_to(call.gradients.scores, "bfloat16"),
}


def take_scores(call: Call, scores: str) -> Iterator[Gradients]:
    """Of the allowed pairs or of all of them."""
    wrong = SCORES[scores](call)
    for array in (np.where(call.steps.allowed_pairs, wrong, 0), wrong):
        yield pull_back_from(call, array)
    yield pull_back_from(call, np.where(call.steps.allowed_pairs, wrong, 0))._replace(scores=call.gradients.scores)


def reach_empty_rows(call: Call) -> Iterator[Gradients]:
    steps = call.steps
    if steps.empty_rows in ("zero", "any") and not steps.allowed_pairs.any(axis=-1).all():
        filled = steps.change(empty_rows="mean").pull_back(call.case.cotangents, call.forward.weights)
        yield call.gradients._replace(value=filled.value)


def spread_nan(call: Call) -> Iterator[Gradients]:
    """NaN as automatic differentiation of a guarded softmax has it: in the row's query alone, or in what it meets."""
    empty, right = sum_row(call.steps.allowed_pairs) == 0, call.gradients
    if call.steps.empty_rows in ("zero", "any") and empty.any():
        met = np.any(empty, axis=2, keepdims=True)
        places = {"query": empty, "scores": empty, "key": met} | ({} if right.value is None else {"value": met})
        nan = {name: np.where(place, np.nan, getattr(right, name)) for name, place in places.items()}
        yield from (right._replace(**dict(list(nan.items())[:n])) for n in range(1, len(nan) + 1))


def slope_of(call: Call) -> np.ndarray | float:
    cap = call.steps.softcap
    return 1.0 if cap is None else np.asarray(1 - np.tanh(call.steps.products() / cap) ** 2)


SLOPES: dict[str, Callable[[Call], Any]] = {
    "missing": lambda call: 1.0,
    "1 - s^2 of the capped scores s": lambda call: 1 - call.steps.cap(call.steps.products()) ** 2,
    "divided by the softcap": lambda call: slope_of(call) / (call.steps.softcap or 1),
}


def take_slope(call: Call, slope: str) -> Iterator[Gradients]:
    scores, uncapped = call.gradients.scores * SLOPES[slope](call), call.steps.change(softcap=None)
    found = uncapped.pull_back_scores(scores, None, call.forward.logsumexp)
    yield call.gradients._replace(query=found.query, key=found.key)


def forget_transpose(call: Call) -> Iterator[Gradients]:
    steps, right, (_, _, Q, K) = call.steps, call.gradients, call.steps.sizes
    if Q == K:
        key = (right.scores * slope_of(call)) @ steps.query * steps.scale
        value = (steps.fill_empty_rows(call.forward.weights) * steps.factor) @ call.cotangent()
        yield from (right._replace(key=key), right._replace(value=value), right._replace(key=key, value=value))


def use_weights(call: Call, of: str) -> Iterator[Gradients]:
    steps, weights = call.steps, call.forward.weights
    found = weights @ steps.keys if of == "query" else weights.swapaxes(-1, -2) @ steps.query
    for factor in (steps.scale, 1.0):
        yield call.gradients._replace(**{of: factor * found})


def forget_dropout(call: Call, of: str) -> Iterator[Gradients]:
    steps = call.steps if of == "values" else call.steps.change(factor=1.0)
    value_factor = call.steps.factor if of == "weights" else 1.0
    for mean in (None, row_mean(call)):
        yield steps.pull_back(call.case.cotangents, call.forward.weights, mean=mean, value_factor=value_factor)


# --- the cotangents ---------------------------------------------------------------------------------------------------


COTANGENTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ones": np.ones_like,
    "that of the first row, for all rows": lambda bar: np.broadcast_to(bar[:, :, :1], bar.shape),
    "read as [B, H, Q, V] from memory that holds [B, Q, H, V]": lambda bar: bar.swapaxes(1, 2).reshape(bar.shape),
}


LOGSUMEXP_FACTORS = {"left out": 0.0, "of the other sign": -1.0, "multiplied by ln 2": LN2, "divided by ln 2": 1 / LN2}


def take_logsumexp_cotangent(call: Call, how: str) -> Iterator[Gradients]:
    bar = call.case.cotangents.get("logsumexp")
    if bar is None:
        return
    outside = how == "added outside the bracket"
    bars = call.case.cotangents | {"logsumexp": (0 if outside else LOGSUMEXP_FACTORS[how]) * bar}
    found = call.steps.pull_back(bars, call.forward.weights)
    if outside:
        scores = np.where(call.steps.allowed_pairs, found.scores + bar[..., None], 0)
        found = pull_back_from(call, scores)._replace(sinks=found.sinks)
    yield found
    yield found._replace(sinks=call.gradients.sinks)


def count_padded_queries(call: Call) -> Results:
    """Pull back what follows the queries of a sequence, too, whose own gradients are nothing that is compared."""
    case = call.case
    whole = {name: array for name, array in case.inputs.items() if name != "query_lengths"}
    steps = AttentionSteps.read_case(replace(case, inputs=whole))
    gradients = steps.pull_back(case.cotangents, steps.forward().weights)
    return steps.sum_gradients(gradients, whole.keys() - {"query"})


# --- gradients as a whole ---------------------------------------------------------------------------------------------


def take_gradients(call: Call, of: str) -> Results:
    """The right ones of "key and value" or of "every input"; none where one of those named is missing."""
    right = {name: call.right[gradient_name(name)] for name in INPUTS if gradient_name(name) in call.right}
    names = right if of == "every input" else of.split(" and ")
    return {name: right[name] for name in names} if right.keys() >= set(names) else {}


def remaining_rate(call: Call) -> float:
    return 1 - float(call.case.options.get("dropout_rate") or 0)


FACTORS: dict[str, Callable[[Call], float]] = {
    "1 / scale": lambda call: np.divide(1, call.steps.scale),
    "the scale": lambda call: call.steps.scale,
    "1 / sqrt(D) / scale": lambda call: np.divide(call.steps.query.shape[-1] ** -0.5, call.steps.scale),
    "-1": lambda call: -1.0,
    "2": lambda call: 2.0,
    "1/2": lambda call: 0.5,
    "1 - rate": remaining_rate,
    "1 / (1 - rate)": lambda call: 1 / remaining_rate(call),
    "ln 2": lambda call: LN2,
    "1 / ln 2": lambda call: 1 / LN2,
    "1 / the pairs that share an element of the bias": lambda call: np.divide(
        call.steps.bias.size, call.steps.visible.size
    ),
    "0": lambda call: 0.0,
}


def multiply_gradient(call: Call, of: str, factor: str) -> Iterator[Results]:
    number = FACTORS[factor](call)
    if np.isfinite(number) and number != 1:
        yield {name: number * array for name, array in take_gradients(call, of).items()}


def exchange_gradients(call: Call, pair: str) -> Iterator[Results]:
    right = take_gradients(call, pair)
    if len({array.shape for array in right.values()}) == 1:
        yield dict(zip(right, reversed(right.values()), strict=True))


AXES = {
    "query": ("batch element", "head", "query", "column"),
    "key": ("batch element", "head", "key", "column"),
    "value": ("batch element", "head", "key", "column"),
    "bias": ("batch element", "head", "query", "key"),
    "sinks": ("head",),
}


def clear_from(call: Call, of: str, axis: str, first: int = 0, block: int = 0) -> Iterator[Results]:
    """Leave 0 from an index on, or from the last whole block on."""
    right = call.right.get(gradient_name(of))
    behind = len(AXES[of]) - AXES[of].index(axis) if axis in AXES[of] else 0
    if right is None or not 0 < behind <= right.ndim:
        return
    size = right.shape[-behind]
    kept = np.arange(size) < (size // block * block if block else first)
    if kept.any() and not kept.all():
        yield {of: np.where(kept.reshape(-1, *(1,) * (behind - 1)), right, 0)}


# --- sums over heads, rows and batch elements -------------------------------------------------------------------------


COUNTED: dict[str, Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]] = {
    "the last query head of each group only": lambda h, g, G, S: h == g * S + S - 1,
    "the first query head of each group only": lambda h, g, G, S: h == g * S,
    "the mean of each group's query heads": lambda h, g, G, S: (h // S == g) / S,
    "the first query head of each group twice": lambda h, g, G, S: (h // S == g) + 1.0 * (h == g * S),
    "all but the last query head of each group": lambda h, g, G, S: (h // S == g) & (h != g * S + S - 1),
    "query heads h, h + G, h + 2 G, ...": lambda h, g, G, S: h % G == g,
    "the query heads h whose h // G is the key head": lambda h, g, G, S: h // G == g,
    "the query heads h whose h % S is the key head": lambda h, g, G, S: h % S == g,
}
"""How often query heads count for the gradients of key heads, [G, H]. S is the number of query heads in a group."""


def count_heads(call: Call, of: str, heads: str) -> Iterator[Results]:
    (_, H, _, _), G = call.steps.sizes, call.steps.key.shape[1]
    if 0 < G < H:
        counted = COUNTED[heads](np.arange(H), np.arange(G)[:, None], G, H // G).astype(float)
        parts: Any = call.gradients._asdict()
        yield {name: np.einsum("gh,bhkw->bgkw", counted, parts[name]) for name in of.split(" and ")}


SUMS = (
    *("bias over batch elements", "bias over heads", "sinks over batch elements", "sinks over queries"),
    *("key over queries", "value over queries", "query over keys"),
)
ALONG = {"batch elements": 0, "heads": 1, "queries": 2, "keys": 3}


def count_terms(call: Call, of: str, along: str) -> int:
    """Return how many terms the sum has; 0 where this gradient is no such sum."""
    summed = gradient_name(of) in call.right and (of != "bias" or call.steps.bias.shape[ALONG[along]] == 1)
    return call.steps.sizes[ALONG[along]] if summed else 0


def sum_terms(call: Call, of: str, along: str, places: int | slice | np.ndarray) -> np.ndarray:
    """Return the part of a gradient that these batch elements, heads, queries or keys add to it."""
    steps, right = call.steps, call.gradients
    some = (*[slice(None)] * ALONG[along], places)
    if of in ("bias", "sinks"):
        terms: Any = right.scores if of == "bias" else right.sinks
        sizes = steps.bias.shape if of == "bias" else (1, terms.shape[1], 1, 1)
        axes = tuple(axis for axis in range(4) if sizes[axis] == 1)
        return np.asarray(terms[some].sum(axis=axes)).reshape(call.right[gradient_name(of)].shape)
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
}


def take_terms(call: Call, sum: str, terms: str, block: int) -> Iterator[Results]:
    of, along = sum.split(" over ")
    count = count_terms(call, of, along)
    kept = TERMS[terms](np.arange(count), count, block)
    if kept.any() and not kept.all():
        yield {of: sum_terms(call, of, along, kept)}


MOST = 2**22
"""Numbers that are rounded for one sum in 16 bits, at most."""


def sum_in_16_bits(call: Call, sum: str, dtype: str, block: int) -> Iterator[Results]:
    """Each block is rounded before it is added, or their sum alone."""
    of, along = sum.split(" over ")
    count = count_terms(call, of, along)
    fits = 0 < -(-count // block) * call.right[gradient_name(of)].size <= MOST if block < count else False
    if not fits or expected_dtype(gradient_name(of), call.case) not in ("float32", dtype):
        return
    parts = [sum_terms(call, of, along, slice(start, start + block)) for start in range(0, count, block)]
    for addends in ([round_to(part, dtype) for part in parts], parts):
        yield {of: reduce(lambda total, part: round_to(total + part, dtype), addends, np.zeros_like(parts[0]))}


ROUNDED = {f"the gradient of {name}": name for name in INPUTS}


def round_part(call: Call, of: str, dtype: str) -> Iterator[Gradients | Results]:
    """Round the weights P, or a gradient: its sum, or each query head's part before these are added up."""
    steps, parts, name = call.steps, call.gradients, ROUNDED.get(of, "")
    right = call.right.get(f"gradient of {name}")
    if of == "P":
        weights = round_to(steps.fill_empty_rows(call.forward.weights) * steps.factor, dtype)
        yield parts._replace(value=weights.swapaxes(-1, -2) @ call.cotangent())
    elif right is not None:
        yield {name: round_to(right, dtype)}
        if name in ("key", "value") and 0 < right.shape[1] < steps.sizes[1]:
            yield parts._replace(**{name: round_to(getattr(parts, name), dtype)})


# --- bias and sinks ---------------------------------------------------------------------------------------------------


BIASES: dict[str, Callable[[Call], list[np.ndarray]]] = {
    "multiplied by the slope of the softcap": lambda call: [call.gradients.scores * slope_of(call)],
    "that of the weights": lambda call: [weights_bar(call), weights_bar(call) * call.steps.allowed_pairs],
    "without the mean rowsum(P * P_bar)": lambda call: [call.forward.weights * weights_bar(call)],
    "NaN where the bias is -inf": lambda call: [np.where(call.steps.open, call.gradients.scores, np.nan)],
}


SHARES: dict[str, Callable[[Call, np.ndarray, np.ndarray], np.ndarray]] = {
    "exp2(sink - L / ln 2)": lambda call, sink, L: np.exp(sink * LN2 - L),
    "exp(sink - L / ln 2)": lambda call, sink, L: np.exp(sink - L / LN2),
    "exp(sink - maximum)": lambda call, sink, L: np.exp(sink - row_maximum(call.forward.scores, sink)),
    "exp(sink)": lambda call, sink, L: np.exp(sink + 0 * L),
    "exp(sink - L) with L of the keys alone": lambda call, sink, L: np.exp(
        sink - call.steps.change(sinks=None).forward().logsumexp
    ),
    "1": lambda call, sink, L: np.ones_like(L),
    "exp(sink - L), without the mean that it is multiplied by,": lambda call, sink, L: np.exp(sink - L),
}


def take_share(call: Call, share: str) -> Iterator[Gradients]:
    mean = 1 if "without the mean" in share else centre(call)
    sinks = np.asarray(call.steps.sinks)
    yield call.gradients._replace(sinks=-mean * SHARES[share](call, sinks, call.forward.logsumexp))


# --- the entries ------------------------------------------------------------------------------------------------------


SIZES = (64, 256, 1024, 4096, 16384, 65535)
SOME_BLOCKS = (1, 16, 64, 128)
MISTAKES = (
    entry("mean", "the backward pass subtracts {mean}, not rowsum(P * P_bar)",
          lambda call, mean: [call.steps.pull_back(call.case.cotangents, call.forward.weights, mean=MEANS[mean](call))],
          mean=tuple(MEANS)),
    entry("mean-of-blocks", "rowsum(P * P_bar) is taken over {keys}, not over the row (blocks of {block} keys)",
          take_mean_of_blocks, keys=("each block of keys", "the blocks of keys so far"), block=(8, *BLOCKS)),
    entry("logsumexp-misread", "the log-sum-exp of the backward pass {reading}",
          lambda call, reading: weigh_by_logsumexp(call, READINGS[reading](
              call.forward.logsumexp, row_maximum(call.forward.scores, call.steps.sinks))),
          reading=tuple(READINGS)),
    entry("logsumexp-beside-large-scores", "the backward pass takes the weights from one log-sum-exp for each row, "
          "which loses digits beside large scores", lose_digits, rule="ATT-4"),
    entry("row-shared", "the {statistic} of the first row of every block of {block} stands for all of its rows in the "
          "backward pass", share_row, statistic=("log-sum-exp", "mean rowsum(P * P_bar)"), block=BLOCKS),
    entry("feature-forgotten", "the backward pass knows nothing of the {feature}", forget, feature=("sinks", "bias")),
    entry("scores", "the gradient of the scores is {scores}", take_scores, scores=tuple(SCORES)),
    entry("empty-rows-reach-values", "a row that allows no key passes its gradient on to the values, as if it were "
          "filled with their mean", reach_empty_rows, rule="ATT-6"),
    entry("empty-rows-nan", "rows that allow no key give NaN in gradients", spread_nan, rule="ATT-6",
          operations=ATTENTION),
    entry("slope", "the slope of the softcap is {slope} in the backward pass", take_slope, rule="ATT-2",
          operations=ATTENTION, needs=("softcap",), slope=tuple(SLOPES)),
    entry("transpose-forgotten", "the gradient of key or value is computed without a transpose", forget_transpose),
    entry("weights-for-scores", "the gradient of {of} is computed from the weights, not from the gradient of the "
          "scores", use_weights, of=("query", "key")),
    entry("dropout-forgotten", "dropout is missing in the gradient of {of}", forget_dropout, rule="ATT-11",
          needs=("dropout_keep",), of=("values", "weights", "values and weights")),
    entry("cotangent", "the cotangent in the backward pass is {cotangent}",
          lambda call, cotangent: [call.steps.pull_back(
              call.case.cotangents | {"output": COTANGENTS[cotangent](call.case.cotangents["output"])},
              call.forward.weights)],
          cotangent=tuple(COTANGENTS)),
    entry("logsumexp-cotangent", "the cotangent of the log-sum-exp beside the output is {how}",
          take_logsumexp_cotangent, rule="ATT-14", how=(*LOGSUMEXP_FACTORS, "added outside the bracket")),
    TOPIC.entry(
        "padded-queries", "query_lengths are ignored: what follows the queries of a sequence counts in the gradients",
        count_padded_queries, rule="MASK-2", needs=("query_lengths", *NEEDS)),
    entry("missing", "the gradient of {of} is missing: it is 0", partial(multiply_gradient, factor="0"),
          operations=ATTENTION, of=(*INPUTS, "query and key", "bias and sinks", "every input")),
    entry("factor", "the gradient of {of} is multiplied by {factor}", multiply_gradient, operations=ATTENTION,
          of=(*INPUTS, "query and key", "every input"), factor=tuple(FACTORS)[:-1]),
    entry("exchanged", "the gradients of {pair} are exchanged", exchange_gradients,
          pair=("key and value", "query and key", "query and value")),
    entry("zero-past", "the gradient of {of} is 0 from {axis} {first} on", clear_from, operations=ATTENTION,
          of=("key", "query", "value", "bias", "sinks"), axis=("key", "query", "head", "column"), first=SIZES),
    entry("tail-zero", "the gradient of {of} is 0 in a last tile of less than {block} along the {axis} axis",
          clear_from, of=("key", "query", "value", "bias"), axis=("key", "query", "column"),
          block=(32, 4, 8, 16, 64, 128)),
    entry("heads", "the gradient of {of} counts {heads}", count_heads, rule="ATT-7",
          of=("key and value", "key", "value"), heads=tuple(COUNTED)),
    entry("terms", "the gradient of {sum} comes from {terms} only (blocks of {block})", take_terms, sum=SUMS,
          terms=tuple(TERMS), block=SOME_BLOCKS[:3]),
    entry("sum-in-16-bits", "the gradient of {sum} is added up in {dtype} (blocks of {block})", sum_in_16_bits,
          sum=SUMS, dtype=HALF, block=SOME_BLOCKS),
    entry("rounded", "{of} is rounded to {dtype} in the backward pass", round_part, dtype=HALF,
          of=("P", *ROUNDED)),
    entry("bias", "the gradient of bias is {how}",
          lambda call, how: [call.gradients._replace(scores=scores) for scores in BIASES[how](call)],
          needs=("bias",), how=tuple(BIASES)),
    entry("sink-share", "the gradient of a sink takes {share} for its share of the weights", take_share,
          operations=ATTENTION, needs=("sinks",), share=tuple(SHARES)),
)  # fmt: skip
BY_NAME = name_entries(MISTAKES) | {"masks.ignored": masks.KNOWN["ignored"]}


def plant(name: str, *conditions: Condition, **values: Sequence[Any]) -> list[Mistake]:
    """Choose each combination of these values, and the first ones of other parameters, under each condition."""
    combinations = (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))
    return [BY_NAME[name].choose(**one).limit(at) for one in combinations for at in conditions or (ALWAYS,)]


PLANTED = (
    # A subject that is planted returns no log-sum-exp beside the output and has no lengths of queries.
    *(one.choose() for name, one in BY_NAME.items()
      if name not in ("masks.ignored", "logsumexp-cotangent", "padded-queries")),
    *plant("feature-forgotten", feature=("bias",)), *plant("missing", of=("value", "bias", "sinks")),
    *plant("terms", sum=SUMS[1:5], terms=("all but the last block",)), *plant("terms", past("K", 32), past("K", 2048)),
    *plant("heads", Condition("S", 2, up_to=3), past("S", 7), of=("value",)),
    *plant("factor", of=("bias",), factor=("the scale",)), *plant("factor", of=("sinks",), factor=("-1",)),
    *plant("factor", past("K", 64), past("K", 4096), of=("query",), factor=("1/2",)),
    *(replace(one, rule="ATT-1") for one in plant("factor", of=("key",), factor=("1 / sqrt(D) / scale",))),
    *(replace(one, rule="ATT-3") for one in plant("bias", how=("NaN where the bias is -inf",))),
    *(one.plant_in("attention_logsumexp", rule="ATT-14")
      for one in (*plant("slope"), *plant("missing", of=("sinks",)))),
    *plant("missing", past("K", 1024), of=("sinks",)),
    *plant("zero-past", of=("key",), first=(1024, 16384)), *plant("zero-past", of=("query",), axis=("query",)),
    *plant("zero-past", of=("value",), axis=("column",)), *plant("zero-past", of=("sinks",), axis=("head",)),
    *plant("tail-zero", past("K", 32, partial=True)), *plant("row-shared", statistic=("mean rowsum(P * P_bar)",)),
    *plant("masks.ignored", *(Condition("K", n, passes="backward") for n in (0, 64, 1024))),
)  # fmt: skip
