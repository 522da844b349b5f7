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

This covers the literal form, two passes, online softmax in blocks of at least 16 keys, the scale wherever it is put,
exp2, and exp of log-softmax. Products in TF32 or a 16-bit dtype, and weights rounded to one, are covered for subjects
that declare them only (`rounding.py`).

Gradients follow the same algebra: the mean of P_bar under P has the same cancellation, whether it is taken as
rowsum(P * P_bar) or as rowsum(O_bar * O).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformance.bounds.arithmetic import (
    EXP,
    LAMBDA,
    LOG,
    TANH,
    Approx,
    Precision,
    exact,
    mapped,
    matmul,
    multiply,
    select,
    stored,
    transposed,
)
from conformance.bounds.rounding import rounded, scaled_side, side, side_gradient, weight_format

SCALE = 8
"""Roundings of scale, square root, products with either side, and log2(e)."""


class Rows(NamedTuple):
    """The softmax of every row: exact weights and the relative errors of the exponentials behind them."""

    allowed: np.ndarray  # [B, H, Q, K]
    scores: Approx  # [B, H, Q, K]
    slope: Approx  # of the softcap
    weights: np.ndarray  # [B, H, Q, K]
    relative: np.ndarray  # |e|, [B, H, Q, K]
    sink_weight: np.ndarray  # [B, H, Q, 1]
    sink_relative: np.ndarray
    spread: np.ndarray  # sum_j P_j |e_j|, [B, H, Q, 1]
    counts: np.ndarray  # allowed keys of a row, [B, H, Q, 1]
    logsumexp: np.ndarray  # [B, H, Q, 1]


def online(keys: int, p: Precision) -> float:
    """Relative error of rescaling factors: 7 u each in the worst case; near 1, where they add up, 2 u on average."""
    blocks = max(0, -(-keys // 16) - 1)
    return min(7.0 * blocks, 2 * LAMBDA * np.sqrt(blocks)) * p.inner


def summation(n: np.ndarray, p: Precision) -> np.ndarray:
    steps = np.minimum(n, LAMBDA * np.sqrt(n)) * p.inner
    return steps / (1 - steps)


def scores_and_slope(
    query: Approx, key: Approx, bias: Approx | None, scale: float, softcap: float | None, p: Precision
) -> tuple[Approx, Approx]:
    query, key = scaled_side(query, p, scale), scaled_side(key, p, scale)
    scores = matmul(query, transposed(key), p, SCALE, scale)
    slope = exact(np.ones_like(scores.value))
    if softcap is not None:
        ratio = np.tanh(scores.value / softcap)
        steep = 1 - ratio**2
        # The slope itself changes by at most 0.77 / softcap for each unit of the score.
        moved = 0.77 * (scores.error + 2 * p.inner * np.abs(scores.value)) / softcap
        slope = Approx(steep, np.minimum(1, moved + (2 * TANH + 4) * p.inner))
        error = np.minimum(1, steep + moved) * (scores.error + 2 * p.inner * np.abs(scores.value))
        value = softcap * ratio
        scores = Approx(value, error + (TANH + 2) * p.inner * np.abs(value))
    if bias is not None:
        value = scores.value + bias.value
        error = scores.error + bias.error
        # One rounding for the sum, one for a multiplication by log2(e) after it.
        scores = Approx(value, error + 2 * p.inner * (np.abs(value) + error))
    return scores, slope


def softmax_rows(scores: Approx, slope: Approx, allowed: np.ndarray, sinks: Approx | None, p: Precision) -> Rows:
    value = np.where(allowed, scores.value, -np.inf)
    maximum = np.max(value, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks.value[:, None, None]
        maximum = np.maximum(maximum, sink)
    maximum = np.where(np.isfinite(maximum), maximum, 0)
    exponentials = np.exp(value - maximum)
    sink_exponential = np.zeros_like(maximum)
    counts = np.sum(allowed, axis=-1, keepdims=True).astype(float)
    sink_relative = np.zeros_like(maximum)
    constant = EXP * p.inner + online(scores.value.shape[-1], p)
    if sinks is not None:
        sink_exponential = np.exp(sink - maximum)
        counts = counts + 1
        shift = p.inner * (4 * np.abs(sink - maximum) + 2 * np.abs(sink))
        sink_relative = np.expm1(sinks.error[:, None, None] + shift + constant)
    sums = np.sum(exponentials, axis=-1, keepdims=True) + sink_exponential
    safe = np.where(sums == 0, 1, sums)
    shift = np.where(allowed, np.abs(scores.value - maximum), 0)
    relative = np.expm1(np.where(allowed, scores.error, 0) + 3 * p.inner * shift + constant)
    weights, sink_weight = exponentials / safe, sink_exponential / safe
    # An exponential below the smallest normal number may be lost entirely.
    lost = counts * p.inner_tiny / safe
    spread = np.sum(weights * relative, axis=-1, keepdims=True) + sink_weight * sink_relative + lost
    with np.errstate(divide="ignore"):
        logsumexp = maximum + np.log(sums)
    return Rows(allowed, scores, slope, weights, relative, sink_weight, sink_relative, spread, counts, logsumexp)


def margin(rows: Rows) -> np.ndarray:
    """1 / (1 + sum P e) in the worst case; rows with nothing left to promise get infinity."""
    return np.where(rows.spread < 0.9, 1 / np.maximum(1 - rows.spread, 0.1), np.inf)


def by_logsumexp(rows: Rows, p: Precision) -> np.ndarray:
    """Relative error, common to a row, of weights taken as exp(score - log-sum-exp), which need not add up to 1."""
    size = np.where(np.isfinite(rows.logsumexp), np.abs(rows.logsumexp), 0)
    return 2 * p.inner * size + LOG * p.inner * np.log(np.maximum(rows.counts, 1)) + 2 * p.inner


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x * y where 0 * inf is 0: a hopeless row matters only where something depends on it."""
    with np.errstate(invalid="ignore"):
        return np.where((x == 0) | (y == 0), 0, x * y)


def weights_approx(rows: Rows, p: Precision) -> Approx:
    rounding = summation(rows.counts, p) + 4 * p.inner + by_logsumexp(rows, p)
    relative = product(rows.relative + rows.spread, margin(rows)) + rounding
    error = np.where(rows.allowed, np.minimum(1, product(rows.weights, relative)) + 4 * p.inner_tiny, 0)
    return Approx(rows.weights, error)


def logsumexp_approx(rows: Rows, p: Precision) -> Approx:
    value = rows.logsumexp
    finite = np.where(np.isfinite(value), value, 0)
    maximum = finite - np.log(np.maximum(rows.counts, 1))  # the maximum lies between this and the log-sum-exp
    largest = np.maximum(np.abs(finite), np.abs(maximum))
    spread = np.where(rows.spread < 0.9, -np.log1p(-np.minimum(rows.spread, 0.9)), np.inf)
    logarithm = LOG * p.inner * np.log(np.maximum(rows.counts, 1))
    # exp2 keeps the logarithm and the maximum in base 2; turning them back rounds each once more.
    error = spread + summation(rows.counts, p) + logarithm + 4 * p.inner * largest + 2 * p.inner
    return Approx(value, np.where(np.isfinite(value), error, 0))


def weighted_mean(rows: Rows, values: Approx, factor: np.ndarray, p: Precision) -> Approx:
    """sum_j P_j f_j v_j for values [B, H, K, V] and given factors f [B, H, Q, K] (dropout)."""
    product_of = rows.weights * factor
    value = product_of @ values.value
    w = rows.weights * rows.relative
    ones = np.sum(w, axis=-1, keepdims=True)
    squares = (w * factor**2) @ values.value**2 - 2 * value * ((w * factor) @ values.value) + value**2 * ones
    # float64's own rounding of the three terms must not make the difference too small.
    slack = 2.0**-48 * ((w * factor**2) @ values.value**2 + value**2 * ones)
    moved = np.sqrt(ones * (np.maximum(squares, 0) + slack)) + rows.sink_weight * rows.sink_relative * np.abs(value)
    error = product(moved, margin(rows)) + mean_rounding(rows, values, factor, value, p)
    # The values' own errors are weighed with the weights as they are held.
    error = error + product((product_of * (1 + rows.relative)) @ values.error, margin(rows))
    error = error + by_logsumexp(rows, p) * np.abs(value)
    return Approx(value, error + rounded_weights(rows, values, factor, Approx(value, error), p))


def mean_rounding(rows: Rows, values: Approx, factor: np.ndarray, mean: np.ndarray, p: Precision) -> np.ndarray:
    """What the sums of `weighted_mean` add to its error, for themselves."""
    absolute = (rows.weights * factor) @ values.size
    error = (summation(rows.counts, p) + 6 * p.inner) * (absolute + np.abs(mean))
    lost = p.inner_tiny * (factor * rows.allowed @ (values.size + 1) + rows.counts * np.abs(mean) + 1)
    return error + np.where(rows.counts > 0, lost, 0)


def rounded_weights(rows: Rows, values: Approx, factor: np.ndarray, mean: Approx, p: Precision) -> np.ndarray | float:
    """What rounding the weights of `weighted_mean` adds to its error, where it is declared."""
    form = weight_format(p)
    if form is None:
        return 0.0
    w = rows.weights * (1 + rows.relative)
    sizes = (w * factor) @ values.size
    squares = (w * factor**2) @ values.value**2 - 2 * mean.value * ((w * factor) @ values.value)
    squares = squares + mean.value**2 * np.sum(w, axis=-1, keepdims=True)
    deviations = np.sqrt(np.sum(w, axis=-1, keepdims=True) * np.maximum(squares, 0)) + mean.error
    lost = form.tiny * (factor * rows.allowed @ values.size + rows.counts * mean.size)
    return form.unit * product(np.maximum(sizes, deviations), margin(rows)) + lost


def softmax_gradient(
    rows: Rows, weights_bar: Approx, logsumexp_bar: Approx | None, by_output: np.ndarray | None, p: Precision
) -> tuple[Approx, Approx]:
    """S_bar = P (P_bar - mean + L_bar), and (L_bar - mean) for the sink.

    by_output: rounding errors of the mean as rowsum(O_bar * O), where it may be taken so.
    """
    weights = rounded(weights_approx(rows, p), p.weights)
    mean = np.sum(rows.weights * weights_bar.value, axis=-1, keepdims=True)
    w = rows.weights * rows.relative
    moved = np.sum(w * np.abs(weights_bar.value - mean), axis=-1, keepdims=True)
    moved = moved + rows.sink_weight * rows.sink_relative * np.abs(mean)
    absolute = np.sum(rows.weights * weights_bar.size, axis=-1, keepdims=True)
    mean_error = product(moved, margin(rows)) + np.sum(rows.weights * weights_bar.error, axis=-1, keepdims=True)
    mean_error = mean_error + by_logsumexp(rows, p) * np.abs(mean)
    by_weights = 2 * (summation(rows.counts, p) + 4 * p.inner) * absolute
    mean_error = mean_error + (by_weights if by_output is None else np.maximum(by_weights, by_output))
    form = weight_format(p)
    if form is not None:
        lost = form.tiny * np.sum(rows.allowed * weights_bar.size, axis=-1, keepdims=True)
        mean_error = mean_error + form.unit * absolute + lost
    logsumexp = exact(np.zeros_like(mean)) if logsumexp_bar is None else logsumexp_bar
    inside = weights_bar.value - mean + logsumexp.value
    largest = weights_bar.size + np.abs(mean) + mean_error + logsumexp.size
    inside_error = weights_bar.error + mean_error + logsumexp.error + 3 * p.inner * largest
    scores_bar = multiply(weights, Approx(inside, inside_error), p, 2)
    # The gradient of exp2 has ln(2) times it on the way, which may be too small where it is not.
    scores_bar = select(rows.allowed, Approx(scores_bar.value, scores_bar.error + p.inner_tiny))
    sink = Approx(logsumexp.value - mean, mean_error + logsumexp.error + 2 * p.inner * (np.abs(mean) + logsumexp.size))
    return scores_bar, sink


def sink_gradient(rows: Rows, sink: Approx, p: Precision) -> Approx:
    relative = product(rows.sink_relative + rows.spread, margin(rows)) + summation(rows.counts, p) + 6 * p.inner
    relative = relative + 4 * p.inner * np.abs(np.where(np.isfinite(rows.logsumexp), rows.logsumexp, 0))
    weight = Approx(rows.sink_weight, rows.sink_weight * relative + 4 * p.inner_tiny)
    terms = multiply(weight, sink, p, 2)
    n = terms.value.shape[0] * terms.value.shape[2]
    return Approx(
        np.sum(terms.value, axis=(0, 2, 3)),
        np.sum(terms.error, axis=(0, 2, 3)) + p.gamma(n) * np.sum(terms.size, axis=(0, 2, 3)),
    )


def group_sum(x: Approx, groups: int, p: Precision) -> Approx:
    """Gradients of the query heads that share a key head, added up."""
    B, H, K, W = x.value.shape
    share = H // max(groups, 1)
    value, error, size = (a.reshape(B, groups, share, K, W).sum(axis=2) for a in (x.value, x.error, x.size))
    return Approx(value, error + (p.gamma(share) if share > 1 else 0) * size)


class AttentionApprox(NamedTuple):
    rows: Rows
    output: Approx
    factor: np.ndarray
    reach: np.ndarray


def spread_heads(x: Approx, heads: int) -> Approx:
    return mapped(x, lambda a: np.repeat(a, heads // max(a.shape[1], 1), axis=1))


def attention(
    query: Approx,
    key: Approx,
    value: Approx | None,
    allowed: np.ndarray,
    *,
    bias: Approx | None,
    scale: float | None,
    softcap: float | None,
    sinks: Approx | None,
    factor: np.ndarray,
    empty_rows: str,
    p: Precision,
) -> AttentionApprox:
    """Forward errors. `allowed` is dense [B, H, Q, K]; `factor` is what dropout multiplies each weight with."""
    heads, width = query.value.shape[1], query.value.shape[-1]
    scale = 1 / np.sqrt(width) if scale is None else float(scale)
    key = spread_heads(key, heads)
    if bias is not None:
        bias = Approx(np.where(np.isfinite(bias.value), bias.value, 0), bias.error)
    scores, slope = scores_and_slope(query, key, bias, scale, softcap, p)
    rows = softmax_rows(scores, slope, allowed, sinks, p)
    if value is None:  # the weights and the log-sum-exp have no output
        return AttentionApprox(rows, exact(np.zeros(0)), factor, allowed)
    value = side(spread_heads(value, heads), p)
    output = weighted_mean(rows, value, factor, p)
    empty = ~np.any(allowed, axis=-1, keepdims=True)
    if empty_rows == "mean" and empty.any():
        keys = max(allowed.shape[-1], 1)
        spread = rounded(exact(factor / keys), weight_format(p))
        mean = spread.value @ value.value
        error = spread.value @ value.error + spread.error @ value.size
        error = error + (p.gamma(keys) + 6 * p.inner) * (spread.size @ value.size) + p.inner_tiny
        output = Approx(np.where(empty, mean, output.value), np.where(empty, error, output.error))
    return AttentionApprox(rows, output, factor, allowed | (empty & (empty_rows == "mean")))


def output_product_rounding(forward: AttentionApprox, bar: Approx, values: Approx, p: Precision) -> np.ndarray:
    """Rounding errors of rowsum(O_bar * O) beyond those that rowsum(P * P_bar) has too.

    What the weights' and the values' errors do to O they do to P_bar's mean alike: with the same e_j and v_j it is
    off by sum_j P_j e_j (P_bar_j - mean) again. Left are the sums of O and of this product, and O's own dtype, in
    which a declared kernel may keep it.
    """
    output = forward.output
    error = mean_rounding(forward.rows, values, forward.factor, output.value, p)
    if weight_format(p) is not None:
        error = stored(Approx(output.value, error), p).error
    product_error = (p.gamma(bar.value.shape[-1]) + 2 * p.inner) * np.sum(
        bar.size * output.size, axis=-1, keepdims=True
    )
    return np.sum(bar.size * error, axis=-1, keepdims=True) + product_error


def attention_gradients(
    query: Approx,
    key: Approx,
    value: Approx | None,
    forward: AttentionApprox,
    cotangents: dict[str, Approx],
    *,
    scale: float | None,
    sinks: Approx | None,
    p: Precision,
) -> dict[str, Approx]:
    """Errors of the gradients of query, key, value, bias (as [B, H, Q, K]) and sinks, unrounded.

    `cotangents` holds one of "output", "weights", "logsumexp".
    """
    rows, factor, reach = forward.rows, forward.factor, forward.reach
    heads, groups, width = query.value.shape[1], key.value.shape[1], query.value.shape[-1]
    scale = 1 / np.sqrt(width) if scale is None else float(scale)
    gradients: dict[str, Approx] = {}
    form = weight_format(p)
    logsumexp_bar = by_output = None
    if "output" in cotangents:
        bar, wide = side(cotangents["output"], p), side(spread_heads(value, heads), p)
        weights = weights_approx(rows, p)
        keys = max(reach.shape[-1], 1)
        # Rows filled by a mean have weight 1 / K, rounded once, on every key.
        filled = reach & ~rows.allowed
        weights = Approx(np.where(filled, 1 / keys, weights.value), np.where(filled, 2 * p.inner / keys, weights.error))
        dropped = Approx(weights.value * factor, (weights.error + 3 * p.inner * weights.size) * factor)
        dropped = select(reach, rounded(dropped, form))
        gradients["value"] = group_sum(side_gradient(matmul(transposed(dropped), bar, p, 2), p), groups, p)
        weights_bar = rounded(matmul(bar, transposed(wide), p, 2), form)
        weights_bar = Approx(weights_bar.value * factor, (weights_bar.error + 3 * p.inner * weights_bar.size) * factor)
        by_output = output_product_rounding(forward, cotangents["output"], wide, p)
    elif "weights" in cotangents:
        weights_bar = cotangents["weights"]
    else:
        weights_bar = exact(np.zeros_like(rows.weights))
        logsumexp_bar = mapped(cotangents["logsumexp"], lambda a: a[..., None])
    scores_bar, sink = softmax_gradient(rows, weights_bar, logsumexp_bar, by_output, p)
    gradients["bias"] = scores_bar
    if sinks is not None:
        gradients["sinks"] = sink_gradient(rows, sink, p)
    raw = select(rows.allowed, rounded(multiply(scores_bar, rows.slope, p), form, scale))
    wide_key, query = scaled_side(spread_heads(key, heads), p, scale), scaled_side(query, p, scale)
    gradients["query"] = side_gradient(matmul(raw, wide_key, p, SCALE, scale), p)
    gradients["key"] = group_sum(side_gradient(matmul(transposed(raw), query, p, SCALE, scale), p), groups, p)
    return gradients
