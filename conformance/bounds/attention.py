"""Error bounds of attention, its companions and their gradients.

Write s for the exact scores, P for the exact weights, and primes for what an implementation holds.

Scores. s' = s + d with
    |d| <= gamma(D + SCALE) |scale| sum |q||k|.
SCALE counts the roundings of putting the scale on the product or on either side, of splitting it as its square root on
both, and of multiplying by log2(e) for exp2. Then come the softcap's slope times that and its own rounding, then the
bias's.

Exponentials. With the row's maximum m (any number near it cancels), exp(s' - m) = exp(s - m)(1 + e) where
    |e| <= expm1(d + 3 u |s - m| + (EXP + online(n)) u):
3 u |s - m| is the rounding of the shifted argument, of a constant of exp2, and of the rescalings in online softmax,
whose shifts add up to no more than m - s; online(n) is the error of the rescaling factors themselves, at most one for
every 16 keys, each of which multiplies numerator and denominator alike.

Weights and output. Since the weights are normalised, a common factor in e cancels exactly:
    o' - o = sum_j P_j e_j (v_j - o) / (1 + sum_j P_j e_j),
so the bound uses |v_j - o|, not |v_j|: values with a large common part are not an excuse. The sum over j is bounded by
Cauchy-Schwarz, which turns it into matrix products. Summation adds gamma(n) of the sums of absolute terms, in the
numerator and in the denominator.

Weights may also be taken as exp(s - log-sum-exp), as in the backward pass of blocked kernels: they then share the
relative error of rounding the log-sum-exp, 2 u |log-sum-exp|, and need not add up to 1.

Saved. That error grows with the scores, and rules about scores of any size do not excuse it: they hold a case to the
bound of a like one with small scores. A subject may declare that its backward pass takes the weights from one
log-sum-exp for each row. Its gradients then have the bound of the case itself, with the terms 2 u |log-sum-exp| above
in P, in the mean of P_bar and in the sink's weight, and from there in every gradient. Scores that are computed again
may also be rounded otherwise than those behind the log-sum-exp. With e and e' for the two, the weights add up to
1 + sum_j P_j (e'_j - e_j) beside what the log-sum-exp's rounding does, so a mean under these weights is off by up to
    2 |mean| sum_j P_j |e_j| / (1 - sum_j P_j |e_j|)
more. A weight is still off by 1 at most: scores that are rounded alike in both passes, and a log-sum-exp rounded once,
make no weight above 1. The output comes from a maximum and a sum as before.

This covers the literal form, two passes, online softmax in blocks of at least 16 keys, the scale wherever it is put,
exp2, and exp of log-softmax. Products in TF32 or a 16-bit dtype, and weights rounded to one, are covered for subjects
that declare them only (`arithmetic.py`).

Merging. A subject may declare that it merges parts of 16 keys or more, and a sink, by one log-sum-exp each. Ranks of a
ring merge a known number of parts, which may be smaller. A part's
L_p, the whole one, and their difference are rounded, and the logarithm and the exponential taken: one merge adds to |e|
    u (4 max(|s|, |L|) + EXP + LOG log(n) + 2) + gamma(n),
because |L_p| is at most the larger of |s_j| and |L| for every key j of the part. Parts may be merged one after the
other, so n parts make n - 1 merges, whose errors add up. The factors of a merge need not add up to 1: what weights
taken as exp(s - log-sum-exp) share counts for every merge. Automatic differentiation takes S_bar as the sum of a part's
P (P_bar - mean_p) and of P (mean_p - mean), each as large as the row's largest |P_bar - mean|.

Gradients follow the same algebra: the mean of P_bar under P has the same cancellation, whether it is taken as
rowsum(P * P_bar) or as rowsum(O_bar * O).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import (
    EXP,
    LOG,
    TANH,
    Approx,
    Precision,
    Sums,
    exact,
    map_approx,
    matmul,
    multiply,
    partial_sums,
    round_approx,
    round_output,
    scaled_side,
    select,
    side,
    side_gradient,
    sum_terms,
    sums,
    transpose,
    weight_format,
)

SCALE = 8
"""Roundings of scale, square root, products with either side, and log2(e)."""


class Rows(NamedTuple):
    """The softmax of every row: exact weights and the relative errors of the exponentials behind them."""

    allowed: np.ndarray  # [B, H, Q, K]
    scores: Approx  # [B, H, Q, K]
    slope: Approx | None  # of the softcap
    weights: np.ndarray  # [B, H, Q, K]
    relative: np.ndarray  # |e|, [B, H, Q, K]
    sink_weight: np.ndarray  # [B, H, Q, 1]
    sink_relative: np.ndarray
    spread: np.ndarray  # sum_j P_j |e_j|, [B, H, Q, 1]
    counts: np.ndarray  # allowed keys of a row, [B, H, Q, 1]
    logsumexp: np.ndarray  # [B, H, Q, 1]
    merges: int  # by one log-sum-exp, where that is declared


def merges_of(keys: int, sinks: bool, p: Precision) -> int:
    """How often parts of the keys, and a sink, are merged by one log-sum-exp at most."""
    return max((p.parts or -(-keys // 16)) - 1, 0) + sinks if "merging" in p.declared else 0


def online(keys: int, p: Precision) -> float:
    """Relative error of rescaling factors, at most 7 u each."""
    return 7 * max(0, -(-keys // 16) - 1) * p.inner


def scores_and_slope(
    query: Approx, key: Approx, bias: Approx | None, scale: float, softcap: float | None, p: Precision
) -> tuple[Approx, Approx | None]:
    """Scores, and the softcap's slope where there is one."""
    query, key = scaled_side(query, p, scale), scaled_side(key, p, scale)
    scores = round_approx(round_approx(matmul(query, transpose(key), p, SCALE, scale), p.scores, scale), p.scores)
    biased = softcap is not None and "capped" in p.declared
    if biased:
        scores = add_bias(scores, bias, p)
    slope = None
    if softcap is not None:
        scores = round_approx(scores, p.scores, 1 / softcap)  # the quotient
        ratio = np.tanh(scores.value / softcap)
        steep = 1 - ratio**2
        # The slope itself changes by at most 0.77 / softcap for each unit of the score.
        moved = 0.77 * (scores.error + 2 * p.inner * np.abs(scores.value)) / softcap
        rounded = 0.0 if p.scores is None else 2 * p.scores.unit * ratio**2
        slope = Approx(steep, np.minimum(1, moved + rounded + (2 * TANH + 4) * p.inner))
        error = np.minimum(1, steep + moved) * (scores.error + 2 * p.inner * np.abs(scores.value))
        value = softcap * ratio
        scores = Approx(value, error + (TANH + 2) * p.inner * np.abs(value))
        scores = round_approx(round_approx(scores, p.scores, 1 / softcap), p.scores)
    return scores if biased else add_bias(scores, bias, p), slope


def add_bias(scores: Approx, bias: Approx | None, p: Precision) -> Approx:
    if bias is None:
        return scores
    value = scores.value + bias.value
    error = scores.error + bias.error
    # One rounding for the sum, one for a multiplication by log2(e) after it.
    return round_approx(Approx(value, error + 2 * p.inner * (np.abs(value) + error)), p.scores)


def softmax_rows(scores: Approx, slope: Approx | None, allowed: np.ndarray, sinks: Approx | None, p: Precision) -> Rows:
    forbidden = None if allowed.all() else ~allowed
    value = scores.value if forbidden is None else np.where(allowed, scores.value, -np.inf)
    maximum = np.max(value, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks.value[:, None, None]
        maximum = np.maximum(maximum, sink)
    maximum = np.where(np.isfinite(maximum), maximum, 0)
    shifted = value - maximum
    exponentials = np.exp(shifted)
    sink_exponential = np.zeros_like(maximum)
    counts = np.sum(allowed, axis=-1, keepdims=True).astype(float)
    sink_relative = np.zeros_like(maximum)
    constant = EXP * p.inner + online(scores.value.shape[-1], p)
    if sinks is not None:
        sink_exponential = np.exp(sink - maximum)
        counts = counts + 1
    total = np.sum(exponentials, axis=-1, keepdims=True) + sink_exponential
    with np.errstate(divide="ignore"):
        logsumexp = maximum + np.log(total)
    merges = merges_of(scores.value.shape[-1], sinks is not None, p)
    held = np.where(np.isfinite(logsumexp), np.abs(logsumexp), 0)
    if merges:
        logarithm = EXP + LOG * np.log(np.maximum(counts, 1)) + 2
        constant = constant + merges * (p.inner * (4 * held + logarithm) + p.gamma(counts))
    if sinks is not None:
        shift = p.inner * (4 * np.abs(sink - maximum) + (2 + 4 * merges) * np.abs(sink))
        sink_relative = np.expm1(sinks.error[:, None, None] + shift + constant)
    safe = np.where(total == 0, 1, total)
    relative = np.abs(shifted, out=shifted)
    relative *= 3 * p.inner
    relative += scores.error
    if merges:
        relative += 4 * merges * p.inner * np.abs(scores.value)
    if forbidden is not None:
        np.copyto(relative, 0, where=forbidden)
    relative += constant
    np.expm1(relative, out=relative)
    weights, sink_weight = np.divide(exponentials, safe, out=exponentials), sink_exponential / safe
    # An exponential below the smallest normal number may be lost entirely.
    lost = counts * p.inner_tiny / safe
    spread = np.sum(weights * relative, axis=-1, keepdims=True) + sink_weight * sink_relative + lost
    fields = allowed, scores, slope, weights, relative, sink_weight, sink_relative, spread, counts, logsumexp, merges
    return Rows(*fields)


def margin(rows: Rows) -> np.ndarray:
    """1 / (1 + sum P e) in the worst case; rows with nothing left to promise get infinity."""
    return np.where(rows.spread < 0.9, 1 / np.maximum(1 - rows.spread, 0.1), np.inf)


def logsumexp_error(rows: Rows, p: Precision) -> np.ndarray:
    """Relative error, common to a row, of weights taken as exp(score - log-sum-exp), which need not add up to 1."""
    size = np.where(np.isfinite(rows.logsumexp), np.abs(rows.logsumexp), 0)
    once = 2 * p.inner * size + LOG * p.inner * np.log(np.maximum(rows.counts, 1)) + 2 * p.inner
    return (1 + rows.merges) * once


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x * y where 0 * inf is 0: a hopeless row matters only where something depends on it."""
    with np.errstate(invalid="ignore"):
        result = x * y
        # NaN alone shows that there was such a product.
        return np.where((x == 0) | (y == 0), 0, result) if np.isnan(result).any() else result


def times(array: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    """array * factor, which is 1 where it is None."""
    return array if factor is None else array * factor


def weights_approx(rows: Rows, p: Precision) -> Approx:
    rounding = p.gamma(rows.counts) + 4 * p.inner + logsumexp_error(rows, p)
    relative = product(rows.relative + rows.spread, margin(rows))
    relative += rounding
    error = product(rows.weights, relative)
    np.minimum(1, error, out=error)
    error += 4 * p.inner_tiny
    return Approx(rows.weights, error if rows.allowed.all() else np.where(rows.allowed, error, 0))


def logsumexp_approx(rows: Rows, p: Precision) -> Approx:
    value = rows.logsumexp
    finite = np.where(np.isfinite(value), value, 0)
    maximum = finite - np.log(np.maximum(rows.counts, 1))  # the maximum lies between this and the log-sum-exp
    largest = np.maximum(np.abs(finite), np.abs(maximum))
    spread = np.where(rows.spread < 0.9, -np.log1p(-np.minimum(rows.spread, 0.9)), np.inf)
    logarithm = LOG * p.inner * np.log(np.maximum(rows.counts, 1))
    # exp2 keeps the logarithm and the maximum in base 2; turning them back rounds each once more.
    error = spread + p.gamma(rows.counts) + logarithm + 4 * p.inner * largest + 2 * p.inner
    return Approx(value, np.where(np.isfinite(value), error, 0))


def weighted_mean(rows: Rows, values: Approx, factor: np.ndarray | None, p: Precision) -> Approx:
    """sum_j P_j f_j v_j for values [B, H, K, V] and given factors f [B, H, Q, K] (dropout)."""
    product_of = times(rows.weights, factor)
    value = product_of @ values.value
    w = rows.weights * rows.relative
    ones = np.sum(w, axis=-1, keepdims=True)
    weighted = times(w, factor)
    second = times(weighted, factor) @ values.value**2
    squares = second - 2 * value * (weighted @ values.value) + value**2 * ones
    # float64's own rounding of the three terms must not make the difference too small.
    slack = 2.0**-48 * (second + value**2 * ones)
    # Two roots, because the product of two tiny numbers, as beside a sink far above the scores, would be 0.
    moved = np.sqrt(ones) * np.sqrt(np.maximum(squares, 0) + slack) + rows.sink_weight * rows.sink_relative * np.abs(
        value
    )
    error = product(moved, margin(rows)) + mean_rounding(rows, values, factor, value, p)
    if values.error.any():
        # The values' own errors are weighed with the weights as they are held.
        error = error + product((product_of * (1 + rows.relative)) @ values.error, margin(rows))
    error = error + logsumexp_error(rows, p) * np.abs(value)
    return Approx(value, error + rounded_weights(rows, values, factor, Approx(value, error), p))


def allowed_sum(rows: Rows, factor: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    """The sum of the factor times an array [B, H, K, V] over the allowed keys."""
    if factor is None and rows.allowed.all():
        return np.sum(array, axis=-2, keepdims=True)
    return times(rows.allowed.astype(float), factor) @ array


def mean_rounding(rows: Rows, values: Approx, factor: np.ndarray | None, mean: np.ndarray, p: Precision) -> np.ndarray:
    """What the sums of `weighted_mean` add to its error, for themselves."""
    absolute = times(rows.weights, factor) @ values.size
    error = (p.gamma(rows.counts) + 6 * p.inner) * (absolute + np.abs(mean))
    lost = p.inner_tiny * (allowed_sum(rows, factor, values.size + 1) + rows.counts * np.abs(mean) + 1)
    return error + np.where(rows.counts > 0, lost, 0)


def rounded_weights(
    rows: Rows, values: Approx, factor: np.ndarray | None, mean: Approx, p: Precision
) -> np.ndarray | float:
    """What rounding the weights of `weighted_mean` adds to its error, where it is declared."""
    form = weight_format(p)
    if form is None:
        return 0.0
    w = rows.weights * (1 + rows.relative)
    weighted = times(w, factor)
    sizes = weighted @ values.size
    squares = times(weighted, factor) @ values.value**2 - 2 * mean.value * (weighted @ values.value)
    squares = squares + mean.value**2 * np.sum(w, axis=-1, keepdims=True)
    deviations = np.sqrt(np.sum(w, axis=-1, keepdims=True)) * np.sqrt(np.maximum(squares, 0)) + mean.error
    lost = form.tiny * (allowed_sum(rows, factor, values.size) + rows.counts * mean.size)
    return form.unit * product(np.maximum(sizes, deviations), margin(rows)) + lost


def softmax_gradient(
    rows: Rows,
    weights: Approx,
    weights_bar: Approx,
    logsumexp_bar: Approx | None,
    by_output: np.ndarray | None,
    p: Precision,
) -> tuple[Approx, Approx]:
    """S_bar = P (P_bar - mean + L_bar), and (L_bar - mean) for the sink.

    weights: P with its errors. by_output: rounding errors of the mean as rowsum(O_bar * O), where it may be taken so.
    """
    weights = round_approx(weights, p.weights)
    mean = np.sum(rows.weights * weights_bar.value, axis=-1, keepdims=True)
    w = rows.weights * rows.relative
    moved = np.sum(w * np.abs(weights_bar.value - mean), axis=-1, keepdims=True)
    moved = moved + rows.sink_weight * rows.sink_relative * np.abs(mean)
    absolute = np.sum(rows.weights * weights_bar.size, axis=-1, keepdims=True)
    mean_error = product(moved, margin(rows)) + np.sum(rows.weights * weights_bar.error, axis=-1, keepdims=True)
    mean_error = mean_error + logsumexp_error(rows, p) * np.abs(mean)
    if "saved" in p.declared:
        mean_error = mean_error + product(2 * rows.spread * np.abs(mean), margin(rows))
    by_weights = 2 * (p.gamma(rows.counts) + 4 * p.inner) * absolute
    mean_error = mean_error + (by_weights if by_output is None else np.maximum(by_weights, by_output))
    if "saved" in p.declared:
        # However large the scores, no weight is off by more than 1, and the output lies among the values: so either
        # form of the mean is at most the sum of what it is the mean of.
        sizes = np.broadcast_to(weights_bar.size + weights_bar.error, rows.weights.shape)
        most = np.sum(sizes, axis=-1, keepdims=True, where=rows.allowed)
        mean_error = np.fmin(mean_error, most + np.abs(mean) + by_weights)  # NaN where the scores' errors have no end
    form = weight_format(p)
    if form is not None:
        size = np.broadcast_to(weights_bar.size, rows.weights.shape)  # one 0 for all, where only log-sum-exps have bars
        lost = form.tiny * np.sum(size, axis=-1, keepdims=True, where=rows.allowed)
        mean_error = mean_error + form.unit * absolute + lost
    logsumexp = exact(np.zeros_like(mean)) if logsumexp_bar is None else logsumexp_bar
    inside = weights_bar.value - mean + logsumexp.value
    largest = weights_bar.size + np.abs(mean) + mean_error + logsumexp.size
    inside_error = weights_bar.error + mean_error + logsumexp.error + 3 * p.inner * largest
    if rows.merges:
        size = np.broadcast_to(np.abs(inside) + weights_bar.size + logsumexp.size, rows.weights.shape)
        most = np.max(size, axis=-1, keepdims=True, initial=0, where=rows.allowed)
        inside_error = inside_error + (3 * p.inner + 2 * rows.relative) * most
    scores_bar = multiply(weights, Approx(inside, inside_error), p, 2)
    # The gradient of exp2 has ln(2) times it on the way, which may be too small where it is not.
    scores_bar = select(rows.allowed, Approx(scores_bar.value, scores_bar.error + p.inner_tiny))
    sink = Approx(logsumexp.value - mean, mean_error + logsumexp.error + 2 * p.inner * (np.abs(mean) + logsumexp.size))
    return scores_bar, sink


class Terms(NamedTuple):
    """Sums of terms, of their errors and of their sizes. Those of parts of the terms, added, are those of them all."""

    value: np.ndarray
    error: np.ndarray
    size: np.ndarray

    def __add__(self, other: Terms) -> Terms:  # type: ignore[override]
        return Terms(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def sum_terms(self, n: int, p: Precision) -> Approx:
        """n terms in all; one term is no sum."""
        return Approx(self.value, self.error + (p.gamma(n) if n > 1 else 0) * self.size)


def sink_terms(rows: Rows, sink: Approx, p: Precision) -> Terms:
    """The sums over batch and queries [H] that the gradient of the sinks is made of."""
    relative = product(rows.sink_relative + rows.spread, margin(rows)) + p.gamma(rows.counts) + 6 * p.inner
    relative = relative + 4 * p.inner * np.abs(np.where(np.isfinite(rows.logsumexp), rows.logsumexp, 0))
    weight = Approx(rows.sink_weight, rows.sink_weight * relative + 4 * p.inner_tiny)
    terms = multiply(weight, sink, p, 2)
    return Terms(*(np.sum(array, axis=(0, 2, 3)) for array in (terms.value, terms.error, terms.size)))


def group_sum(x: Approx, groups: int, p: Precision) -> Approx:
    """Gradients of the query heads that share a key head, added up (`arithmetic.py`: in 16 bits, where declared)."""
    B, H, K, W = x.value.shape
    share = H // max(groups, 1)
    x = round_approx(x, p.shared_heads) if share > 1 else x
    value, error, size = (a.reshape(B, groups, share, K, W).sum(axis=2) for a in (x.value, x.error, x.size))
    added = Approx(value, error + (p.gamma(share) if share > 1 else 0) * size)
    return partial_sums(added, size, share, p.shared_sums) if share > 1 else added


def broadcast_terms(x: Approx, shape: tuple[int, ...]) -> Terms:
    """The sums that the gradient of a bias [B or 1, H or 1, Q, K] is made of, over what it was broadcast to."""
    axes = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    return Terms(*(np.sum(array, axis=axes, keepdims=True) for array in (x.value, x.error, x.size)))


def spread_heads(x: Approx, heads: int) -> Approx:
    share = heads // max(x.value.shape[1], 1)
    return x if share == 1 else map_approx(x, lambda a: np.repeat(a, share, axis=1))


# --- attention in blocks ----------------------------------------------------------------------------------------------

BLOCK = 2**17
"""Numbers that are looked at together: few enough for a processor's cache."""
LARGEST_BLOCK = 2**20
"""The same where keys and values, which every block reads again, are many more numbers than that."""


def slices(count: int, size: int) -> list[slice]:
    """Of so many elements at most; one that is empty where there are none."""
    step = max(size, 1)
    return [slice(start, start + step) for start in range(0, max(count, 1), step)]


class Settings(NamedTuple):
    """What does not change from one block to the next; scale is a number."""

    scale: float
    softcap: float | None
    sinks: Approx | None
    empty_rows: str
    queries: int  # in all
    p: Precision


class Block(NamedTuple):
    """Some batch elements or queries. `allowed` is [B, H, Q, K]; without values, value is [B, 1, 1, 1] and unused."""

    query: Approx
    key: Approx
    value: Approx
    allowed: np.ndarray
    bias: Approx | None
    factor: np.ndarray | None  # of dropout
    cotangent: Approx | None

    def elements(self, part: slice) -> Block:
        query, key, value = (x.select(part) for x in self[:3])
        bias = self.bias
        if bias is not None and bias.value.shape[0] > 1:
            bias = bias.select(part)
        factor = None if self.factor is None else self.factor[part]
        cotangent = None if self.cotangent is None else self.cotangent.select(part)
        return Block(query, key, value, self.allowed[part], bias, factor, cotangent)

    def queries(self, part: slice) -> Block:
        at = (slice(None), slice(None), part)
        bias, cotangent = (None if x is None else x.select(at) for x in (self.bias, self.cotangent))
        factor = None if self.factor is None else self.factor[at]
        return Block(self.query.select(at), self.key, self.value, self.allowed[at], bias, factor, cotangent)


class Forward(NamedTuple):
    """A block's weights and its result of one kind; reach: the pairs whose values count."""

    rows: Rows
    weights: Approx | None
    result: Approx
    reach: np.ndarray


class Backward(NamedTuple):
    """The gradients of some queries, and their part of those that are summed over all queries."""

    query: Approx
    bias: Terms | None
    key: Sums
    value: Sums | None
    sinks: Terms | None


class Gradients(NamedTuple):
    """The gradients of some batch elements, and their part of those that may be summed over them."""

    query: Approx
    key: Approx
    value: Approx | None
    bias: Terms | None
    sinks: Terms | None


def attention(
    kind: str,
    query: Approx,
    key: Approx,
    value: Approx | None,
    allowed: np.ndarray,
    cotangent: Approx | None,
    *,
    bias: Approx | None,
    scale: float | None,
    softcap: float | None,
    sinks: Approx | None,
    factor: np.ndarray | None,
    empty_rows: str,
    p: Precision,
) -> tuple[Approx, dict[str, Approx]]:
    """The result of a kind ("output", "weights" or "logsumexp"), and with a cotangent all gradients, unrounded.

    `allowed` is dense [B, H, Q, K]; `factor` is what dropout multiplies each weight with. Batch elements and queries
    are taken in blocks. A row of the result, of the query's gradient and of the bias's rests on its own query only.
    Gradients of keys and values are sums over the queries, those of sinks and of a bias that was broadcast also over
    the batch: the blocks' sums of terms, of sizes and of carried errors are added, and gamma(n) is applied to them
    once, with the n of the whole and not of a block.
    """
    (B, H, Q, D), K = query.value.shape, key.value.shape[2]
    settings = Settings(1 / np.sqrt(D) if scale is None else float(scale), softcap, sinks, empty_rows, Q, p)
    value = exact(np.zeros((B, 1, 1, 1))) if value is None else value
    if bias is not None:
        bias = Approx(np.where(np.isfinite(bias.value), bias.value, 0), bias.error)
    whole = Block(query, key, value, allowed, bias, factor, cotangent)
    largest = H * max(Q * K, max(Q, K) * max(D, value.value.shape[-1]))
    blocks = [whole.elements(part) for part in slices(B, BLOCK // max(largest, 1))]
    parts = [some_elements(kind, block, settings) for block in blocks]
    result = concatenate_parts([part[0] for part in parts], 0)
    gradients = [part[1] for part in parts if part[1] is not None]
    if not gradients:
        return result, {}
    whole_gradients = {
        "query": concatenate_parts([g.query for g in gradients], 0),
        "key": concatenate_parts([g.key for g in gradients], 0),
    }
    if kind == "output":
        whole_gradients["value"] = concatenate_parts([g.value for g in gradients if g.value is not None], 0)
    if bias is not None:
        shared, terms = bias.value.shape[:2], [g.bias for g in gradients if g.bias is not None]
        total = reduce(add, terms) if shared[0] == 1 else side_by_side(terms, 0)
        whole_gradients["bias"] = total.sum_terms((B if shared[0] == 1 else 1) * (H if shared[1] == 1 else 1), p)
    if sinks is not None:
        total = reduce(add, [g.sinks for g in gradients if g.sinks is not None])
        whole_gradients["sinks"] = total.sum_terms(B * Q, p)
    return result, whole_gradients


def concatenate_parts(parts: Sequence[Approx], axis: int) -> Approx:
    return parts[0] if len(parts) == 1 else Approx(*(np.concatenate(a, axis) for a in zip(*parts, strict=True)))


def side_by_side(parts: Sequence[Terms], axis: int) -> Terms:
    return parts[0] if len(parts) == 1 else Terms(*(np.concatenate(a, axis) for a in zip(*parts, strict=True)))


def some_elements(kind: str, block: Block, settings: Settings) -> tuple[Approx, Gradients | None]:
    """Some batch elements, in blocks of queries."""
    p = settings.p
    (B, H, Q, D), (G, K) = block.query.value.shape, block.key.value.shape[1:3]
    block = block._replace(key=spread_heads(block.key, H), value=side(spread_heads(block.value, H), p))
    columns = max(D, block.value.value.shape[-1])
    numbers = max(BLOCK, min(B * H * K * columns, LARGEST_BLOCK))
    size = numbers // max(B * H * max(K, columns), 1)
    results: list[Approx] = []
    parts: list[Backward] = []
    for rows in slices(Q, size):
        some = block.queries(rows)
        forward = forward_block(kind, some, settings)
        results.append(forward.result)
        if some.cotangent is not None:
            parts.append(backward_block(kind, some, forward, some.cotangent, settings))
    result = concatenate_parts(results, 2)
    if not parts:
        return result, None
    keys, value = reduce(add, [part.key for part in parts]), None
    if kind == "output":
        values = reduce(add, [part.value for part in parts if part.value is not None])
        value = group_sum(side_gradient(sum_terms(values, Q, p, 2), p), G, p)
    biases = [part.bias for part in parts if part.bias is not None]
    sinks = [part.sinks for part in parts if part.sinks is not None]
    return result, Gradients(
        concatenate_parts([part.query for part in parts], 2),
        group_sum(side_gradient(sum_terms(keys, Q, p, SCALE, settings.scale), p), G, p),
        value,
        side_by_side(biases, 2) if biases else None,
        reduce(add, sinks) if sinks else None,
    )


def forward_block(kind: str, block: Block, settings: Settings) -> Forward:
    p, allowed = settings.p, block.allowed
    scores, slope = scores_and_slope(block.query, block.key, block.bias, settings.scale, settings.softcap, p)
    rows = softmax_rows(scores, slope, allowed, settings.sinks, p)
    if kind == "logsumexp":
        return Forward(rows, None, logsumexp_approx(rows, p).select((..., 0)), allowed)
    empty = ~np.any(allowed, axis=-1, keepdims=True)
    mean = settings.empty_rows == "mean" and bool(empty.any())
    keys = max(allowed.shape[-1], 1)
    if kind == "weights":
        result = weights = weights_approx(rows, p)
        if mean:
            error = np.where(empty, 2 * p.inner / keys, weights.error)
            result = Approx(np.where(empty, 1 / keys, weights.value), error)
        return Forward(rows, weights, result, allowed)
    output = weighted_mean(rows, block.value, block.factor, p)
    if mean:
        spread = round_approx(exact(times(np.full(allowed.shape, 1 / keys), block.factor)), weight_format(p))
        average = spread.value @ block.value.value
        error = spread.value @ block.value.error + spread.error @ block.value.size
        error = error + (p.gamma(keys) + 6 * p.inner) * (spread.size @ block.value.size) + p.inner_tiny
        output = Approx(np.where(empty, average, output.value), np.where(empty, error, output.error))
    return Forward(rows, None, output, allowed | empty if mean else allowed)


def output_product_rounding(block: Block, forward: Forward, bar: Approx, p: Precision) -> np.ndarray:
    """Rounding errors of rowsum(O_bar * O) beyond those that rowsum(P * P_bar) has too.

    What the weights' and the values' errors do to O they do to P_bar's mean alike: with the same e_j and v_j it is
    off by sum_j P_j e_j (P_bar_j - mean) again. Left are the sums of O and of this product, and O's own dtype, in
    which a declared kernel may keep it.
    """
    output = forward.result
    error = mean_rounding(forward.rows, block.value, block.factor, output.value, p)
    if weight_format(p) is not None:
        error = round_output(Approx(output.value, error), p).error
    product_error = (p.gamma(bar.value.shape[-1]) + 2 * p.inner) * np.sum(
        bar.size * output.size, axis=-1, keepdims=True
    )
    return np.sum(bar.size * error, axis=-1, keepdims=True) + product_error


def backward_block(kind: str, block: Block, forward: Forward, cotangent: Approx, settings: Settings) -> Backward:
    rows, p, scale, form = forward.rows, settings.p, settings.scale, weight_format(settings.p)
    weights = weights_approx(rows, p) if forward.weights is None else forward.weights
    values = logsumexp_bar = by_output = None
    if kind == "output":
        bar = side(cotangent, p)
        values = sums(transpose(dropped_weights(weights, block, forward, p)), bar, settings.queries)
        weights_bar = dropout(round_approx(matmul(bar, transpose(block.value), p, 2), form), block.factor, p)
        by_output = output_product_rounding(block, forward, cotangent, p)
    elif kind == "weights":
        weights_bar = cotangent
    else:
        weights_bar = exact(np.zeros((1, 1, 1, 1)))
        logsumexp_bar = map_approx(cotangent, lambda a: a[..., None])
    scores_bar, sink = softmax_gradient(rows, weights, weights_bar, logsumexp_bar, by_output, p)
    if p.scores is not None:
        scores_bar = select(rows.allowed, round_approx(scores_bar, p.scores))
    if rows.slope is None:  # it is 1, and a multiplication by it rounds as any other
        raw = Approx(scores_bar.value, scores_bar.error + p.inner * scores_bar.size + p.inner_tiny)
    else:
        raw = multiply(scores_bar, rows.slope, p)
        for _ in range(3):  # the softcap, the slope of tanh, the quotient
            raw = round_approx(raw, p.scores, 1 / (settings.softcap or 1.0))
    biased = select(rows.allowed, raw) if "capped" in p.declared else scores_bar
    raw = select(rows.allowed, round_approx(round_approx(raw, p.scores, scale), form, scale))
    key, query = scaled_side(block.key, p, scale), scaled_side(block.query, p, scale)
    return Backward(
        side_gradient(matmul(raw, key, p, SCALE, scale), p),
        None if block.bias is None else broadcast_terms(biased, block.bias.value.shape),
        sums(transpose(raw), query, settings.queries),
        values,
        None if settings.sinks is None else sink_terms(rows, sink, p),
    )


def dropped_weights(weights: Approx, block: Block, forward: Forward, p: Precision) -> Approx:
    """The weights by which cotangents are added up to the values' gradient."""
    filled = forward.reach & ~forward.rows.allowed
    if filled.any():
        # Rows filled by a mean have weight 1 / K, rounded once, on every key.
        keys = max(forward.reach.shape[-1], 1)
        value = np.where(filled, 1 / keys, weights.value)
        weights = Approx(value, np.where(filled, 2 * p.inner / keys, weights.error))
    return select(forward.reach, round_approx(dropout(weights, block.factor, p), weight_format(p)))


def dropout(x: Approx, factor: np.ndarray | None, p: Precision) -> Approx:
    """x times the factor, which rounds even where it is 1."""
    return Approx(times(x.value, factor), times(x.error + 3 * p.inner * x.size, factor))
