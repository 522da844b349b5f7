"""Attention and multi-head attention with sampled rounding errors (`noise.py` says what for).

Every step is that of `attention.py`, written for samples: the value comes from samples, the size of a step's own error
from the same function that bounds it there, asked about exact inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformance.bounds import attention as att
from conformance.bounds.arithmetic import Approx, exact, stored
from conformance.bounds.noise import LINEAR, Noise, Samples, deviation, transposed
from conformance.bounds.rounding import weight_format

CONSTANTS = 4
"""Roundings that all scores have in common: of the scale, its root, log2(e), and their product."""


class Problem(NamedTuple):
    """What attention is asked, but for query, key and value; bias and sinks are exact."""

    allowed: np.ndarray  # [B, H, Q, K]
    factor: np.ndarray
    filled: np.ndarray  # rows that have the mean of all values, [B, H, Q, 1]
    groups: int
    scale: float
    softcap: float | None
    bias: Approx | None
    sinks: Approx | None


class Forward(NamedTuple):
    """query, key, value: as sides of products, for every query head. products: scale * query . key. rows: exact."""

    query: Samples
    key: Samples
    value: Samples
    products: Samples
    scores: Samples
    total: Samples
    weights: Samples
    output: Samples
    rows: att.Rows


def forward(problem: Problem, query: Samples, key: Samples, value: Samples, noise: Noise) -> Forward:
    heads, p = query.shape[-3], noise.p
    key, value = (np.repeat(x, heads // max(problem.groups, 1), axis=-3) for x in (key, value))
    local, slope = att.scores_and_slope(exact(query[0]), exact(key[0]), problem.bias, problem.scale, problem.softcap, p)
    rows = att.softmax_rows(exact(local.value), slope, problem.allowed, problem.sinks, p)._replace(scores=local)
    query, key = noise.scaled_side(query, problem.scale), noise.scaled_side(key, problem.scale)
    value = noise.side(value)
    products = problem.scale * (query @ transposed(key))
    products = noise.add(products, CONSTANTS * p.inner * products[0], (1, 1, 1, 1))
    scores = scored(problem, products, rows, noise)
    exponentials, sink = exponentiated(problem, scores, rows, noise)
    total = np.sum(exponentials, axis=-1, keepdims=True) + sink
    total = noise.add(total, att.summation(rows.counts, p) * total[0])
    weights, _ = divided(exponentials, sink, total, rows, noise)
    output = held_weights(problem, weights, noise) @ value
    output = noise.add(output, att.mean_rounding(rows, exact(value[0]), problem.factor, output[0], p))
    return Forward(query, key, value, products, scores, total, weights, output, rows)


def scored(problem: Problem, products: Samples, rows: att.Rows, noise: Noise) -> Samples:
    cap, bias = problem.softcap, problem.bias
    scores = products if cap is None else cap * np.tanh(products / cap)
    scores = scores if bias is None else scores + bias.value
    return noise.add(scores, rows.scores.error)


def exponentiated(problem: Problem, scores: Samples, rows: att.Rows, noise: Noise) -> tuple[Samples, Samples]:
    """exp(score - exact log-sum-exp) of the keys [S, B, H, Q, K], and of the sink [S, B, H, Q, 1]."""
    logsumexp = np.where(np.isfinite(rows.logsumexp), rows.logsumexp, 0)
    exponentials = np.exp(np.where(problem.allowed, scores - logsumexp, -np.inf))
    error = np.where(problem.allowed, rows.weights * rows.relative + noise.p.inner_tiny, 0)
    sink = noise.add(rows.sink_weight[None], rows.sink_weight * rows.sink_relative)
    return noise.add(exponentials, error), sink


def divided(
    exponentials: Samples, sink: Samples, total: Samples, rows: att.Rows, noise: Noise
) -> tuple[Samples, Samples]:
    """Weights of the keys and of the sink; the log-sum-exp's own rounding is common to a row."""
    total = np.where(total == 0, 1, total)
    weights, sink, common = exponentials / total, sink / total, att.by_logsumexp(rows, noise.p)
    own = noise.add(weights, 2 * noise.p.inner * weights[0])
    return noise.add(own, common * weights[0], (*common.shape[:-1], 1)), noise.add(sink, common * sink[0])


def held_weights(problem: Problem, weights: Samples, noise: Noise) -> Samples:
    """Weights as they are multiplied with values and cotangents."""
    p, keys = noise.p, max(weights.shape[-1], 1)
    weights = np.where(problem.filled, 1 / keys, weights) * problem.factor
    weights = noise.add(weights, 3 * p.inner * np.abs(weights[0]))
    form = weight_format(noise.declared)
    if form is None:
        return weights
    weights = noise.rounded(weights, form)
    # Equal weights are rounded equally: those of one row, or of all rows.
    for shape in ((*weights.shape[1:-1], 1), (1, 1, 1, 1)):
        weights = noise.add(weights, form.unit * weights[0], shape)
    return weights


def backward(problem: Problem, f: Forward, bar: Samples, noise: Noise) -> dict[str, Samples]:
    """Gradients of query, key, value, bias (as [B, H, Q, K]) and sinks, from that of the output."""
    p, form = noise.p, weight_format(noise.declared)
    # Weights may be computed once more, from the total or the log-sum-exp of the forward pass.
    scores = scored(problem, f.products, f.rows, noise)
    weights, sink = divided(*exponentiated(problem, scores, f.rows, noise), f.total, f.rows, noise)
    side = noise.side(bar)
    value_bar = noise.product(transposed(held_weights(problem, weights, noise)), side, 2)
    weights_bar = noise.rounded(noise.product(side, transposed(f.value), 2), form) * problem.factor
    weights_bar = noise.add(weights_bar, 3 * p.inner * np.abs(weights_bar[0]))
    mean = np.sum(f.weights * weights_bar, axis=-1, keepdims=True)
    mean = noise.add(mean, mean_error(f, problem.factor, bar, weights_bar, noise))
    inside, size = weights_bar - mean, np.abs(weights_bar[0]) + np.abs(mean[0])
    scores_bar = noise.rounded(weights, noise.declared.weights) * inside
    own = p.inner * (3 * size + 2 * np.abs(inside[0])) * f.rows.weights + p.inner_tiny * (1 + size)
    scores_bar = np.where(problem.allowed, noise.add(scores_bar, own), 0)
    raw = scores_bar
    if problem.softcap is not None:
        slope = noise.add(1 - np.tanh(f.products / problem.softcap) ** 2, f.rows.slope.error)
        raw = noise.add(scores_bar * slope, p.inner * np.abs(scores_bar[0] * slope[0]))
    raw = np.where(problem.allowed, noise.rounded(raw, form, problem.scale), 0)
    gradients = {"value": group_sum(noise.side(value_bar), problem.groups, noise), "bias": scores_bar}
    query_bar = noise.side(noise.product(raw, f.key, att.SCALE, problem.scale))
    key_bar = noise.side(noise.product(transposed(raw), f.query, att.SCALE, problem.scale))
    gradients["query"] = noise.add(query_bar, CONSTANTS * p.inner * query_bar[0], (1, 1, 1, 1))
    key_bar = noise.add(key_bar, CONSTANTS * p.inner * key_bar[0], (1, 1, 1, 1))
    gradients["key"] = group_sum(key_bar, problem.groups, noise)
    if problem.sinks is not None:
        terms = noise.add(-sink * mean, 4 * p.inner * np.abs(sink[0] * mean[0]) + 4 * p.inner_tiny * np.abs(mean[0]))
        size = np.abs(terms[0]).sum(axis=(0, 2, 3))
        n = terms.shape[1] * terms.shape[3]
        gradients["sinks"] = noise.add(terms.sum(axis=(1, 3, 4)), p.gamma(n) * size)
    return gradients


def mean_error(f: Forward, factor: np.ndarray, bar: Samples, weights_bar: Samples, noise: Noise) -> np.ndarray:
    """The mean's own, whether it is taken as rowsum(P * P_bar) or as rowsum(O_bar * O)."""
    p, rows, form = noise.p, f.rows, weight_format(noise.declared)
    terms = rows.weights * weights_bar[0]
    absolute = np.sum(np.abs(terms), axis=-1, keepdims=True)
    by_weights = 2 * (att.summation(rows.counts, p) + 4 * p.inner) * absolute
    output = np.sum(np.abs(bar[0] * f.output[0]), axis=-1, keepdims=True)
    own = att.mean_rounding(rows, exact(f.value[0]), factor, f.output[0], p)
    if form is not None:
        own = stored(Approx(f.output[0], own), p).error
        # Rounded weights: independently, or all equally.
        together = np.sqrt(np.sum(terms**2, axis=-1, keepdims=True)) + np.abs(np.sum(terms, axis=-1, keepdims=True))
        by_weights = by_weights + form.unit * together
    # P_bar holds O_bar as a side of a product, this sum as it is.
    rounded = np.abs(noise.side_error(bar[0]) * f.output[0])
    by_output = np.sqrt(np.sum((bar[0] * own) ** 2 + rounded**2, axis=-1, keepdims=True))
    return by_weights + by_output + (p.gamma(bar.shape[-1]) + 2 * p.inner) * output


def group_sum(x: Samples, groups: int, noise: Noise) -> Samples:
    """Gradients of the query heads that share a key head, added up."""
    share = x.shape[-3] // max(groups, 1)
    shared = x.reshape(*x.shape[:-3], groups, share, *x.shape[-2:])
    total = shared.sum(axis=-3)
    return total if share <= 1 else noise.add(total, noise.p.gamma(share) * np.abs(shared[0]).sum(axis=-3))


def nearly_linear(f: Forward) -> bool:
    """No allowed score is off by more than `LINEAR`."""
    allowed = f.rows.allowed
    return bool(np.max(np.where(allowed, deviation(f.scores), 0), initial=0.0) <= LINEAR)
