"""Known mistakes of attention's backward pass, where the output is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import expected_dtype
from conformance.cases.case import Case
from conformance.checks.comparison import PRECISION, with_truth_in_padding
from conformance.diagnosis.attention import CHANGES, Change
from conformance.diagnosis.blocks import TAILS_LEFT_OUT, TILES_SEEN
from conformance.diagnosis.matching import (
    BACKWARD_ONLY,
    Arrays,
    Bounds,
    Failing,
    Mistake,
    agrees,
    bit_for_bit,
    explained,
    giving,
    instead,
    limits_from,
    loose,
    same,
    told_from,
)
from conformance.diagnosis.operation_row_sums import ROW_SUMS
from conformance.diagnosis.row_sums import to_dtype
from conformance.diagnosis.steps import (
    Forward,
    Parts,
    Steps,
    added_up,
    capped,
    divided,
    exponentials_of,
    filled,
    forward,
    highest,
    of_row,
    over_broadcast,
    over_group,
    products_of,
    pulled_back,
    scores_of,
)
from conformance.oracle.reference import oracle
from specification.dtypes import HALF, compute_dtype_name

Variants = Callable[[Failing], Iterator[Parts]]
"""Ways in which a mistake may be made; each gives other gradients."""


def backwards(name: str, variants: Variants) -> Mistake:
    """All gradients by other steps; the first way that gives those of the subject."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        arrays: Arrays = {}
        for parts in variants(failing):
            arrays = {n: a for n, a in added_up(parts, failing.case).items() if n in failing.got}
            smallest_first = sorted(arrays.items(), key=lambda item: item[1].size)  # most ways end there
            if all(agrees(failing, n, array, loose(failing, n, array)) for n, array in smallest_first):
                break
        return (arrays, {n: loose(failing, n, array) for n, array in arrays.items()}) if arrays else None

    return Mistake(name, answers)


def output_mean(failing: Failing, output: np.ndarray) -> np.ndarray | None:
    """rowsum(O_bar * O)."""
    if failing.case.operation != "attention":
        return None
    return np.sum(failing.bar * output, axis=-1, keepdims=True)


def by_other_steps(change: Change) -> Variants:
    """The backward pass computes weights from other steps: anew, or with the forward pass's log-sum-exp.

    It has the mean of the weights' gradient from these weights, or from the output.
    """

    def variants(failing: Failing) -> Iterator[Parts]:
        s = change(failing)
        if s is not None and gives_worst_query(failing, s, from_steps):
            yield from from_steps(s, failing.forward, failing.bar)

    return variants


def from_steps(s: Steps, right: Forward, bar: np.ndarray) -> Iterator[Parts]:
    """right: the forward pass."""
    scores = scores_of(s)
    saved = np.where(s.allowed, np.exp(scores - right.logsumexp), 0)
    mean = [np.sum(bar * right.output, axis=-1, keepdims=True)] if s.operation == "attention" else []
    empty = np.isneginf(right.logsumexp)
    # Code that handles empty rows gives them no weights, or saves 0 as their log-sum-exp. Other code has exp(inf).
    looked_after = [np.where(empty, one, saved) for one in (0, np.where(s.allowed, np.exp(scores), 0))]
    for weights in (forward(s).weights, *(looked_after if empty.any() else []), saved):
        for means in (None, *mean):
            parts = pulled_back(s, bar, weights, mean=means)
            if s.sinks is None:  # who knows of no sinks gives them no gradient
                parts = parts._replace(sinks=np.zeros((*weights.shape[:3], 1)))
            yield parts
            if not s.bias.any():  # who knows of no bias gives it no gradient
                yield parts._replace(scores=np.zeros_like(parts.scores))


def gives_worst_query(
    failing: Failing, s: Steps, made: Callable[[Steps, Forward, np.ndarray], Iterator[Parts]]
) -> bool:
    """Whether some of the parts give the row of the query's gradient that is farthest off; also where none is off.

    A look at one row is cheap: in a large case there is no time to go through the whole backward pass in many ways.
    """
    name = "gradient of query"
    wrong = next((one for one in failing.findings if one.ratio > 1 and one.name == name), None)
    if wrong is None or wrong.message:
        return True
    b, h, q = row = wrong.index[0], wrong.index[1], wrong.index[2]
    here = np.s_[b : b + 1, h : h + 1, q : q + 1]
    got, limits = failing.answer(name)[row], loose(failing, name, failing.answer(name))[row]
    right = Forward(*(array[here] for array in failing.forward))
    return any(
        np.all(~(np.abs(parts.query[0, 0, 0] - got) > limits))
        for parts in made(of_row(s, row), right, failing.bar[here])
    )


def mask_missing(failing: Failing) -> Steps | None:
    if failing.case.options.get("mask") is None:
        return None
    return failing.steps.changed(visible=np.ones_like(failing.steps.visible))


def unsloped(failing: Failing) -> Iterator[Parts]:
    if failing.steps.softcap is not None:
        yield pulled_back(failing.steps, failing.bar, failing.forward.weights, sloped=False)


def mean_of(mean: Callable[[Failing], np.ndarray]) -> Variants:
    """Another number of each row is subtracted than rowsum(P * P_bar)."""

    def variants(failing: Failing) -> Iterator[Parts]:
        if failing.case.operation == "attention":
            yield pulled_back(failing.steps, failing.bar, failing.forward.weights, mean=mean(failing))

    return variants


def mean_times(factor: Callable[[Steps], float]) -> Variants:
    """What is subtracted is rowsum(P * P_bar) times a number."""
    return mean_of(lambda failing: factor(failing.steps) * right_mean(failing))


def right_mean(failing: Failing) -> np.ndarray:
    return np.sum(failing.bar * failing.forward.output, axis=-1, keepdims=True)


def undivided_mean(failing: Failing) -> np.ndarray:
    _, total, _ = exponentials_of(failing.forward.scores, failing.steps.sinks)
    return right_mean(failing) * total


def weights_bar(failing: Failing) -> np.ndarray:
    """P_bar, the gradient of the weights before dropout."""
    return (failing.bar @ failing.steps.value.swapaxes(-1, -2)) * failing.steps.factor


def weighted_twice(failing: Failing) -> np.ndarray:
    return np.sum(failing.forward.weights**2 * weights_bar(failing), axis=-1, keepdims=True)


def slope_of_capped(failing: Failing) -> Iterator[Parts]:
    """The softcap's slope as 1 - s^2 of the capped scores s, which belong divided by the softcap."""
    s = failing.steps
    if s.softcap is not None:
        yield from_products(failing, failing.parts.scores * (1 - capped(s.softcap)(products_of(s)) ** 2))


def from_products(failing: Failing, raw: np.ndarray) -> Parts:
    """Gradients of query and key from these of the products; the others right."""
    s = failing.steps
    key = raw.swapaxes(-1, -2) @ s.query * s.scale
    return failing.parts._replace(query=raw @ s.key * s.scale, key=key, products=raw)


def unbracketed(failing: Failing) -> Iterator[Parts]:
    """P * P_bar - rowsum(P * P_bar), where P belongs before a bracket; of all pairs, or of those that are allowed."""
    if failing.case.operation == "attention":
        products = failing.forward.weights * weights_bar(failing)
        raw = products - products.sum(axis=-1, keepdims=True)
        yield from_products(failing, raw)._replace(scores=raw)
        raw = np.where(failing.steps.allowed, raw, 0)
        yield from_products(failing, raw)._replace(scores=raw)


def untransposed(failing: Failing) -> Iterator[Parts]:
    """Of keys and values, or of one of them, where there are as many queries as keys."""
    s, raw, weights = failing.steps, failing.parts.products, filled(failing.steps, failing.forward.weights)
    if raw.shape[-1] == raw.shape[-2] and failing.case.operation == "attention":
        key, value = raw @ s.query * s.scale, (weights * s.factor) @ failing.bar
        yield failing.parts._replace(key=key)
        yield failing.parts._replace(value=value)
        yield failing.parts._replace(key=key, value=value)


def saved_otherwise(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Variants:
    """The backward pass reads another log-sum-exp, made of the right one and the row's maximum."""

    def variants(failing: Failing) -> Iterator[Parts]:
        s, right = failing.steps, failing.forward
        weights = np.exp(right.scores - change(right.logsumexp, highest(right.scores, s.sinks)))
        for mean in (output_mean(failing, right.output), None):
            yield pulled_back(s, failing.bar, np.where(s.allowed, weights, 0), mean=mean)

    return variants


def unweighted(failing: Failing) -> Iterator[Parts]:
    """P_bar - rowsum(P * P_bar), not times P, for the pairs that the mask allows."""
    s = failing.steps
    mean = output_mean(failing, failing.forward.output)
    if mean is not None:
        yield pulled_back(s, failing.bar, s.allowed.astype(float), mean=mean)._replace(value=failing.parts.value)


def from_weights(of: str) -> Variants:
    """The gradient of query or key is made from P, where the gradient of the scores belongs; with the scale or not."""

    def variants(failing: Failing) -> Iterator[Parts]:
        s, weights = failing.steps, failing.forward.weights
        product = weights @ s.key if of == "query" else weights.swapaxes(-1, -2) @ s.query
        for factor in (1.0, s.scale):
            yield failing.parts._replace(**{of: factor * product})

    return variants


def undropped(failing: Failing) -> Iterator[Parts]:
    """In one of two places, or in both."""
    s, weights = failing.steps, failing.forward.weights
    if failing.case.options.get("dropout_keep") is None:
        return
    yield pulled_back(s, failing.bar, weights, value_factor=1.0)
    plain, mean = s.changed(factor=1.0), output_mean(failing, failing.forward.output)
    for means in (None, mean):
        yield pulled_back(plain, failing.bar, weights, mean=means, value_factor=s.factor)
        yield pulled_back(plain, failing.bar, weights, mean=means)


def masked_mean(failing: Failing) -> Iterator[Parts]:
    """The mean from weights before dropout."""
    s, weights = failing.steps, failing.forward.weights
    if failing.case.options.get("dropout_keep") is not None:
        mean = np.sum(weights * (failing.bar @ s.value.swapaxes(-1, -2)), axis=-1, keepdims=True)
        yield pulled_back(s, failing.bar, weights, mean=mean)


def queries_beyond_lengths(failing: Failing) -> tuple[Arrays, Bounds] | None:
    case = failing.case
    if "query_lengths" not in case.inputs:
        return None
    other = replace(case, inputs={name: array for name, array in case.inputs.items() if name != "query_lengths"})
    arrays = {name: exact.high for name, exact in oracle(other).items()}
    return with_truth_in_padding(case, arrays, failing.truth), bound(other)


BLOCKS = (*(2**k for k in range(1, 6)), *range(48, 257, 16), 512)
"""Keys or queries that a step of a kernel goes through."""


def at_row(parts: Callable[[Steps, Forward, np.ndarray], Iterator[Parts]]) -> Variants:
    """All parts, if a look at one row does not refute them."""

    def variants(failing: Failing) -> Iterator[Parts]:
        if gives_worst_query(failing, failing.steps, parts):
            yield from parts(failing.steps, failing.forward, failing.bar)

    return variants


def stale_maximum(n: int) -> Mistake:
    """The exponentials' sum is that of the last maximum, and the maximum the one before the last block of n keys."""

    def parts(s: Steps, right: Forward, bar: np.ndarray) -> Iterator[Parts]:
        before = (right.scores.shape[-1] - 1) // n * n
        if before > 0 and s.operation == "attention":
            exponentials, total, maximum = exponentials_of(right.scores, s.sinks)
            grown = np.exp(maximum - highest(right.scores[..., :before]))
            for mean in (np.sum(bar * right.output, axis=-1, keepdims=True), None):
                yield pulled_back(s, bar, divided(exponentials, total) * grown, mean=mean)

    return backwards(
        f"the backward pass rescales with the maximum before the last block (blocks of {n} keys)", at_row(parts)
    )


def mean_of_blocks(n: int, words: str, of: Callable[[np.ndarray], np.ndarray]) -> Mistake:
    """The mean rowsum(P * P_bar) of the n keys of a block, or what `of` makes of the blocks' means, is subtracted."""

    def parts(s: Steps, right: Forward, bar: np.ndarray) -> Iterator[Parts]:
        K = right.scores.shape[-1]
        if s.operation == "attention" and n < K:
            terms, starts = right.weights * s.factor * (bar @ s.value.swapaxes(-1, -2)), np.arange(0, K, n)
            blocks = np.add.reduceat(terms, starts, axis=-1)
            mean = np.repeat(of(blocks), np.diff(starts, append=K), axis=-1)
            found = pulled_back(s, bar, right.weights, mean=mean)
            share = None if s.sinks is None else np.exp(s.sinks - right.logsumexp)
            yield found if share is None else found._replace(sinks=-share * blocks.sum(axis=-1, keepdims=True))

    return backwards(
        f"the mean rowsum(P * P_bar) is taken over {words}, not over the row (blocks of {n} keys)", at_row(parts)
    )


BACKWARD_MISTAKES = [
    Mistake("query_lengths are ignored", queries_beyond_lengths),
    backwards("the backward pass knows nothing of the mask", by_other_steps(mask_missing)),
    backwards("the backward pass knows nothing of the sinks", by_other_steps(CHANGES["sinks are ignored"])),
    backwards("the softcap's slope is missing in the backward pass", unsloped),
    backwards("the dropout mask is missing in the backward pass", undropped),
    backwards("the backward pass takes the weights' mean before dropout", masked_mean),
    backwards(
        "the mean rowsum(P * P_bar) is not subtracted in the backward pass",
        mean_of(lambda failing: np.zeros_like(failing.forward.logsumexp)),
    ),
    backwards("rowsum(P * P_bar) is added, not subtracted, in the backward pass", mean_times(lambda s: -1.0)),
    backwards("rowsum(P * P_bar) is multiplied by the scale in the backward pass", mean_times(lambda s: s.scale)),
    backwards(
        "the backward pass subtracts the mean of O * O_bar over the width, not its sum",
        mean_times(lambda s: 1 / max(s.value.shape[-1], 1)),
    ),
    backwards(
        "the backward pass takes rowsum(O_bar * O) from the output before it is divided by its sum",
        mean_of(undivided_mean),
    ),
    backwards("rowsum(P^2 * P_bar) is subtracted in the backward pass, not rowsum(P * P_bar)", mean_of(weighted_twice)),
    backwards("the softcap's slope is 1 - s^2 of the capped scores s, not 1 - (s / softcap)^2", slope_of_capped),
    backwards("gradients of key or value are made without a transpose", untransposed),
    backwards("the gradient of the scores is P * P_bar - rowsum(P * P_bar), without a bracket after P", unbracketed),
    *(
        backwards(f"the log-sum-exp of the backward pass {words}", saved_otherwise(change))
        for words, change in (
            ("lacks the maximum", lambda logsumexp, maximum: logsumexp - maximum),
            ("has the maximum twice", lambda logsumexp, maximum: logsumexp + maximum),
            ("is the maximum alone", lambda logsumexp, maximum: maximum),
            ("is of base 2, and its scores are of base e", lambda logsumexp, maximum: logsumexp / math.log(2)),
            ("is of base e, and its scores are of base 2", lambda logsumexp, maximum: logsumexp * math.log(2)),
        )
    ),
    backwards("the gradient of the scores is not multiplied by the weights", unweighted),
    *(
        backwards(f"gradient of {of} is made from the weights, not from the gradient of the scores", from_weights(of))
        for of in ("query", "key")
    ),
    *map(stale_maximum, BLOCKS),
    *(mean_of_blocks(n, "each block of keys", lambda blocks: blocks) for n in BLOCKS),
    *(mean_of_blocks(n, "the blocks of keys so far", lambda blocks: np.cumsum(blocks, axis=-1)) for n in BLOCKS),
    *(
        backwards(f"{BACKWARD_ONLY}{name}", by_other_steps(change))
        for name, change in (CHANGES | TILES_SEEN | TAILS_LEFT_OUT).items()
        if name not in ("the mask is ignored", "sinks are ignored", "dropout is ignored")
    ),
]


# --- sums in 16 bits --------------------------------------------------------------------------------------------------


def added_narrowly(failing: Failing, name: str) -> Iterator[Mistake]:
    """A gradient that is added up in its 16 bits, block after block."""
    dtype, shape = str(failing.got[name].dtype), failing.got[name].shape
    if dtype in HALF and failing.steps.visible.size * sum(failing.steps.query.shape[3:]) <= MOST:
        for of, (count, part) in blocks_of(failing, name).items():
            for n in (1, *BLOCKS):
                if n < count:
                    blocks = [part(slice(start, start + n)).reshape(shape) for start in range(0, count, n)]
                    yield in_digits(f"{name} is added up in {dtype} (blocks of {n} {of})", name, dtype, blocks)


def blocks_of(failing: Failing, name: str) -> dict[str, tuple[int, Callable[[slice], Any]]]:
    """What a gradient is a sum over: how many of them there are, and the sum over some."""
    s, p, case = failing.steps, failing.parts, failing.case
    (B, H, Q, K), scores = s.visible.shape, p.products
    if name == "gradient of query":
        return {"keys": (K, lambda some: scores[..., some] @ s.key[:, :, some] * s.scale)}
    if name == "gradient of key":
        rows = s.query * s.scale
        return {"queries": (Q, lambda n: over_group(scores[:, :, n].swapaxes(-1, -2) @ rows[:, :, n], case))}
    if name == "gradient of value":
        weights = filled(s, failing.forward.weights) * s.factor
        return {"queries": (Q, lambda n: over_group(weights[:, :, n].swapaxes(-1, -2) @ failing.bar[:, :, n], case))}
    if name == "gradient of bias":
        over = {name for name, size in zip(("batch", "heads"), bias_axes(case), strict=True) if size == 1}
        found: dict[str, tuple[int, Callable[[slice], Any]]] = {}
        if "batch" in over:
            found["batch elements"] = B, lambda some: over_broadcast(p.scores[some], case)
        if "heads" in over:
            found["heads"] = H, lambda some: over_broadcast(p.scores[:, some], case)
        return found
    return {}


def bias_axes(case: Case) -> tuple[int, ...]:
    """The sizes of the bias over batch elements and heads."""
    return (1, 1, *case.inputs["bias"].shape)[-4:-2]


def in_digits(name: str, of_result: str, dtype: str, blocks: list[np.ndarray]) -> Mistake:
    """The sum of blocks in 16 bits: each is rounded before it is added, or their sum alone."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        for each in (lambda block: to_dtype(block, dtype), lambda block: block):
            total = np.zeros_like(blocks[0])
            for block in blocks:
                total = to_dtype(total + each(block), dtype)
            if bit_for_bit(failing, of_result, total):
                return {of_result: total}, {
                    of_result: limits_from(failing, of_result, total, failing.bounds[of_result])
                }
        return None

    return Mistake(name, answers, of_digits=True)


# --- the output rounded -----------------------------------------------------------------------------------------------


def from_rounded_output(failing: Failing) -> tuple[Arrays, Bounds] | None:
    """D = rowsum(O_bar * O) of the output as it is returned."""
    mean = output_mean(failing, failing.answer("output"))
    if mean is None or PRECISION[failing.case.dtype][0] > 11 or failing.case.options.get("empty_rows") == "mean":
        return None
    parts = pulled_back(failing.steps, failing.bar, failing.forward.weights, mean=mean)
    arrays = {n: a for n, a in added_up(parts, failing.case).items() if n in failing.got}
    return arrays, {n: failing.bounds[n] for n in arrays}


BACKWARD_MISTAKES.append(
    Mistake("the backward pass takes rowsum(O_bar * O) from the rounded output", from_rounded_output)
)


# --- a saved log-sum-exp ----------------------------------------------------------------------------------------------

SAVED = "the backward pass takes the weights from one log-sum-exp for each row"
"""How the name begins."""


def from_logsumexp(failing: Failing) -> Iterator[Parts]:
    """The log-sum-exp has the dtype of the arithmetic; it is natural, or in base 2 as the scores are.

    The mean is that of these weights, or from the output.
    """
    s, form = failing.steps, compute_dtype_name(failing.case.dtype)
    by_output = output_mean(failing, failing.forward.output)
    if by_output is None:
        return

    def kept(array: np.ndarray) -> np.ndarray:
        return array.astype(form).astype(float)

    for base in (1, np.log(2)):
        log = kept(failing.forward.logsumexp / base)
        weights = np.where(s.allowed, np.exp((kept(scores_of(s) / base) - log) * base), 0)
        by_weights = np.sum(weights * s.factor * (failing.bar @ s.value.swapaxes(-1, -2)), axis=-1, keepdims=True)
        for mean in (by_output, by_weights):
            parts = pulled_back(s, failing.bar, weights, mean=mean)
            share = None if s.sinks is None else np.exp((kept(s.sinks / base) - log) * base)
            yield parts if share is None else parts._replace(sinks=-share * mean)


OF_LARGE_SCORES = [backwards(f"{SAVED}, which loses digits beside such scores", from_logsumexp)]


# --- which terms are added up -----------------------------------------------------------------------------------------


def is_answer(failing: Failing, name: str, array: np.ndarray) -> bool:
    """Whether this is the subject's answer, and not the right one."""
    bounds = loose(failing, name, array)
    return told_from(failing.right(name), array, bounds) and same(failing, name, {name: array}, {name: bounds})


def combined(failing: Failing, name: str, terms: np.ndarray, got: np.ndarray) -> np.ndarray | None:
    """The whole numbers A by which terms [n, ...] add up to every part of the answer [m, ...]: A [m, n]."""
    n, m = len(terms), len(got)
    flat, answer = terms.reshape(n, -1), got.reshape(m, -1)
    if n == 0 or m == 0 or flat.shape[1] < n + 1 or n * n * flat.shape[1] > 2**24 or not np.isfinite(answer).all():
        return None
    if not np.isfinite(flat).all():
        return None
    factors, _, rank, _ = np.linalg.lstsq(flat.T, answer.T, rcond=1e-6)
    whole = np.rint(factors.T)
    near = np.abs(whole @ flat - answer) <= loose(failing, name, got).reshape(m, -1)
    return whole if rank == n and near.all() else None


def wrongly_added(failing: Failing, name: str) -> Iterator[str]:
    """Gradients of keys, values and bias as sums over other heads or batch elements than the right ones."""
    case, of = failing.case, name.removeprefix("gradient of ")
    if of in ("key", "value"):
        terms: Any = failing.parts.key if of == "key" else failing.parts.value
        if terms.shape[1] > failing.got[name].shape[1] > 0:
            yield from of_heads(failing, name, terms.swapaxes(0, 1), failing.answer(name).swapaxes(0, 1))
    elif of == "bias":
        shape = (1, 1, *case.inputs["bias"].shape)[-4:]
        B, H = failing.parts.scores.shape[:2]
        got = failing.answer(name).reshape(shape)
        if shape[0] == 1 and B > 1:
            terms = failing.parts.scores if shape[1] > 1 else failing.parts.scores.sum(1, keepdims=True)
            yield from of_one(failing, name, terms, got, "batch element")
        if shape[1] == 1 and H > 1:
            terms = failing.parts.scores if shape[0] > 1 else failing.parts.scores.sum(0, keepdims=True)
            yield from of_one(failing, name, terms.swapaxes(0, 1), got.swapaxes(0, 1), "head")
    elif of == "sinks" and failing.parts.sinks is not None:
        yield from of_one(
            failing, name, failing.parts.sinks.sum(axis=(2, 3)), failing.answer(name)[None], "batch element"
        )


def of_heads(failing: Failing, name: str, terms: np.ndarray, got: np.ndarray) -> Iterator[str]:
    H, G = len(terms), len(got)
    share, every = H // G, np.arange(H)

    def gives(added: np.ndarray) -> bool:
        return is_answer(failing, name, np.tensordot(added.astype(float), terms, 1).swapaxes(0, 1))

    own, of_all = np.arange(G)[:, None] == every // share, np.arange(G)[:, None] == every % G
    if gives(own):  # wrong by digits only
        return
    ways = [words for words, counted in ways_to_count(share) if gives(own * np.tile(counted, G))]
    if not ways and gives(of_all):
        ways.append("adds up query heads h, h + G, ... in place of each group's")
    yield from (f"{name} {words}" for words in ways)
    added = None if ways else combined(failing, name, terms, got)
    if added is None or np.array_equal(added, own):
        return
    if np.any(added[~own]):
        yield f"{name} adds up other query heads than each group's"
    elif np.all(added >= 0):
        yield f"{name} {OTHERWISE}"


def ways_to_count(share: int) -> Iterator[tuple[str, np.ndarray]]:
    """How often each query head of a group may count."""
    every = np.arange(share)
    yield "comes from the first query head of each group only", every == 0
    yield "comes from the last query head of each group only", every == share - 1
    for n in range(2, share):
        yield f"comes from the first {n} query heads of each group only", every < n
        yield f"comes from the last {n} query heads of each group only", every >= share - n
    yield f"{OTHERWISE} (the last one twice)", 1 + (every == share - 1)
    yield f"{OTHERWISE} (the first one twice)", 1 + (every == 0)


OTHERWISE = "counts query heads of each group more or less often than once"


def of_one(failing: Failing, name: str, terms: np.ndarray, got: np.ndarray, thing: str) -> Iterator[str]:
    """The gradient of some batch elements or heads, in place of the sum of all."""
    found, shape = False, failing.answer(name).shape
    for words, counted in some_of(len(terms), thing, f"{thing}s"):
        if is_answer(failing, name, terms[counted].sum(axis=0).reshape(shape)):
            yield f"{name} {words}"
            found = True
    added = None if found else combined(failing, name, terms, got)
    if added is not None and np.ptp(added) > 0:  # all of them equally often: a factor
        yield f"{name} adds up other {thing}s than all"


SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def some_of(count: int, thing: str, things: str) -> Iterator[tuple[str, np.ndarray]]:
    """Which terms of a sum may count in place of all."""
    every = np.arange(count)
    if count < 2:
        return
    yield f"comes from the first {thing} only", every == 0
    yield f"comes from the last {thing} only", every == count - 1
    if count > 2:
        yield f"loses the last {thing}", every < count - 1
        yield f"loses the first {thing}", every > 0
    for n in SIZES:
        last, of = (count - 1) // n * n, f"(blocks of {n} {things})"
        if n < count:
            yield f"comes from the last block of {things} only {of}", every >= last
            yield f"comes from the first block of {things} only {of}", every < n
        if last > n:
            yield f"loses the last block of {things} {of}", every < last
            yield f"loses the first block of {things} {of}", every >= n


def of_some_rows(failing: Failing, name: str) -> Iterator[Mistake]:
    """A gradient that is a sum over queries, or the query's over keys, comes from some of them only.

    The cotangent of other queries is as if 0.
    """
    s, (Q, K) = failing.steps, failing.steps.visible.shape[2:]
    if s.visible.size * (s.query.shape[3] + s.key.shape[3]) > MOST:
        return
    if name == "gradient of query":
        for words, counted in some_of(K, "key", "keys"):
            array = np.where(counted, failing.parts.products, 0) @ s.key * s.scale
            yield giving(f"{name} {words}", name, array)
        return
    for words, counted in some_of(Q, "query", "queries"):
        bar = np.where(counted.reshape(-1, *(1,) * (failing.bar.ndim - 3)), failing.bar, 0)  # log-sum-exps lack an axis
        found = added_up(pulled_back(s, bar, failing.forward.weights), failing.case)
        if name in found:
            yield giving(f"{name} {words}", name, found[name])


MOST = 2**20
"""Multiplications of a backward pass that is gone through for many choices of queries."""


# --- bias by itself ---------------------------------------------------------------------------------------------------


def bias_gradients(failing: Failing) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients of the bias by other steps; the others right."""
    s = failing.steps
    if failing.case.operation == "attention":
        bar = weights_bar(failing)
        words = "gradient of bias is made from the gradient of the weights, not of the scores"
        yield words, bar
        yield words, np.where(s.allowed, bar, 0)
        yield "gradient of bias lacks the mean rowsum(P * P_bar)", failing.forward.weights * bar
    unmasked = forward(s.changed(visible=np.ones_like(s.visible)))
    yield "gradient of bias is that of the unmasked softmax", pulled_back(s, failing.bar, unmasked.weights).scores
    if s.softcap is not None:
        slope = 1 - np.tanh(s.query @ s.key.swapaxes(-1, -2) * s.scale / s.softcap) ** 2
        yield "gradient of bias is multiplied by the softcap's slope", failing.parts.scores * slope


def bias_mistakes(failing: Failing, name: str) -> Iterator[Mistake]:
    for words, scores in bias_gradients(failing) if name == "gradient of bias" else ():
        yield giving(words, name, np.asarray(over_broadcast(scores, failing.case)))
    dtype = failing.case.dtype
    if name == "gradient of bias" and dtype in HALF and str(failing.got[name].dtype) != dtype:
        rounded = failing.right(name).astype(dtype).astype(float)
        yield giving(f"gradient of bias is rounded to {dtype}", name, rounded, strict=True)


# --- sinks ------------------------------------------------------------------------------------------------------------


def sink_shares(failing: Failing) -> Iterator[tuple[str, np.ndarray]]:
    """The share of a row's weight that goes to the sink, done wrong: [B, H, Q, 1]."""
    s, f = failing.steps, failing.forward
    if s.sinks is None:
        return
    exponentials, total, maximum = exponentials_of(f.scores, s.sinks)
    share, log2 = np.exp(s.sinks - f.logsumexp), f.logsumexp / np.log(2)
    yield "the sink is not taken to base 2, in which the log-sum-exp is", np.exp2(s.sinks - log2)
    yield "the log-sum-exp is in base 2, as if it were natural", np.exp(s.sinks - log2)
    yield "the sink is taken to base 2, in which the log-sum-exp is not", np.exp(s.sinks / np.log(2) - f.logsumexp)
    yield "exponentials are in base 2, and nothing else", np.exp2(s.sinks - f.logsumexp)
    yield "the sink's weight is not divided by the sum", np.exp(s.sinks - maximum)
    yield "the sink's weight is the exponential of the sink", np.exp(s.sinks) + 0 * share
    yield "the sum by which its weight is divided lacks the sink", share * total / exponentials.sum(-1, keepdims=True)
    yield "the sink's weight is left out", np.ones_like(share)
    yield "the sink is multiplied by the scale", np.exp(s.sinks * s.scale - f.logsumexp)
    yield "the sink's weight is multiplied by 1 less itself", share * (1 - share)


def sink_gradients(failing: Failing, name: str) -> Iterator[str]:
    if name != "gradient of sinks":
        return
    for words, array in sink_sums(failing):
        if is_answer(failing, name, array):
            yield f"{name}: {words}"
            return


def sink_sums(failing: Failing) -> Iterator[tuple[str, np.ndarray]]:
    """The gradients that come of it, and those of a wrong mean."""
    own: Any = failing.parts.sinks
    share = np.exp(failing.steps.sinks - failing.forward.logsumexp)
    mean = -divided(own, share)
    for words, other in sink_shares(failing):
        yield words, -(other * mean).sum(axis=(0, 2, 3))
    yield "the mean rowsum(P * P_bar) is left out", -share.sum(axis=(0, 2, 3))
    G = failing.case.inputs["key"].shape[1]
    heads = own.sum(axis=(0, 2, 3))
    if 0 < G < len(heads):
        groups = heads.reshape(G, -1)
        yield "a group's query heads are added up", np.broadcast_to(groups.sum(1, keepdims=True), groups.shape).ravel()
        yield "heads get each other's, in the order h % G", groups.T.ravel()
    yield "that of all heads is added up", np.full_like(heads, heads.sum())


# --- multiples --------------------------------------------------------------------------------------------------------


def multiples(failing: Failing, name: str) -> Iterator[str]:
    """The right answer times a number, the same everywhere, that is no matter of the dtype's last digits."""
    expected, wide = failing.right(name), failing.answer(name)
    if not (np.isfinite(expected).all() and np.isfinite(wide).all()) or not expected.any():
        return
    if not wide.any() and (name != "output" or np.count_nonzero(expected) > 1):
        yield f"{name} is 0 everywhere" if name == "output" else f"{name} is missing: it is 0"
    if not wide.any() or np.count_nonzero(expected) < 2:
        return
    factor = float(np.sum(wide * expected) / np.sum(expected**2))
    digits = PRECISION[expected_dtype(name, failing.case)][0]
    if abs(factor - 1) < 8 * 2.0**-digits:
        return
    bounds = np.minimum(
        failing.bounds[name] * max(1.0, abs(factor)), explained(failing, name, expected * factor, 1 / 32)
    )
    if not agrees(failing, name, expected * factor, bounds):
        return
    named = [words for words, number in numbers_of(failing) if abs(factor / number - 1) < 2.0 ** (3 - digits)]
    magnitudes = np.sort(np.abs(expected[expected != 0]))
    if not named and np.count_nonzero(np.diff(magnitudes) > 1e-3 * magnitudes[1:]) < 3:
        return  # a softmax's gradients add up to 0: so few numbers have some factor whatever is wrong
    yield f"{name} is {printed(factor)} times what it must be" + (f" ({', or '.join(named[:2])})" if named else "")


def printed(factor: float) -> str:
    """Six digits; of a factor that would be 1, how far from it."""
    six = f"{factor:.6g}"
    return six if six != "1" else f"1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g}"


def numbers_of(failing: Failing) -> Iterator[tuple[str, float]]:
    """Factors that are forgotten or taken twice."""
    if failing.case.operation.startswith("attention"):
        inputs, s = failing.case.inputs, failing.steps
        H, G = inputs["query"].shape[1], inputs["key"].shape[1]
        if s.scale not in (0, 1):
            yield "the scale is applied twice", s.scale
            yield "the scale is left out", 1 / s.scale
        rate = failing.case.options.get("dropout_rate", 0.0)
        if rate:
            yield "1 - rate is left out or taken twice", 1 - rate
            yield "1 / (1 - rate) is taken twice", 1 / (1 - rate)
        if H > G > 0:
            yield "the query heads of a group are averaged", G / H
        if inputs["query"].shape[0] > 1:
            yield "divided by the batch size", 1 / inputs["query"].shape[0]
    elif failing.case.operation in ROW_SUMS and failing.case.cotangents:
        yield "the rows are averaged", 1 / max(math.prod(failing.bar.shape[:-1]), 1)
    if failing.case.options.get("scaled"):
        width = failing.case.inputs["table"].shape[1]
        yield "sqrt(E) is left out", width**-0.5
        yield "sqrt(E) is taken twice", width**0.5
    yield "ln 2", float(np.log(2))
    yield "log2(e)", float(1 / np.log(2))
    yield "the sign is lost", -1.0
    yield "counted twice", 2.0
    yield "halved", 0.5


# --- beside the output, the log-sum-exp -------------------------------------------------------------------------------


def with_bar_of_logsumexp(factor: float) -> Callable[[Case], Case]:
    """The case with another cotangent of the log-sum-exp."""

    def change(case: Case) -> Case:
        bar = case.cotangents["logsumexp"]
        return replace(case, cotangents=case.cotangents | {"logsumexp": bar * bar.dtype.type(factor)})

    return change


OF_LOGSUMEXP = (
    instead("the log-sum-exp's gradient is left out", with_bar_of_logsumexp(0)),
    instead("the log-sum-exp's gradient has the other sign", with_bar_of_logsumexp(-1)),
    instead("the log-sum-exp's gradient is multiplied by ln(2), as of base 2", with_bar_of_logsumexp(np.log(2))),
    instead("the log-sum-exp's gradient is divided by ln(2), as of base 2", with_bar_of_logsumexp(1 / np.log(2))),
)
"""Of subjects that return both."""
