"""NaN and infinity that get through, get lost or spread (MASK-7, ATT-10, ATT-11)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_numpy as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_gradients import GRADIENTS, attention_vjp_by, differentiated
from conformance.selftest.faults.right_gradients import attention as attention_with_gradients
from conformance.selftest.faults.right_layers import MERGING, merge_attention, merge_attention_by
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    attention,
    attention_by,
    attention_logsumexp,
    attention_logsumexp_by,
    attention_weights,
    attention_weights_by,
)


def leaking(name: str, **steps: Function) -> Fault:
    return Fault("MASK-7", name, "attention", attention_by(RIGHT._replace(**steps)), attention)


def special(name: str, **steps: Function) -> Fault:
    """The gradients are right."""
    function = declare(vjp=attention_vjp_by(GRADIENTS))(attention_by(RIGHT._replace(**steps)))
    return Fault("ATT-10", name, "attention", function, attention_with_gradients)


# --- through the mask -------------------------------------------------------------------------------------------------


def zero_times(weights: Any, value: Any, allowed: Any) -> Any:
    """A weight of 0 times NaN is NaN."""
    return weights @ value


def only_nan(weights: Any, value: Any, allowed: Any) -> Any:
    """NaN is taken out of the way, infinity not."""
    nan = np.isnan(value)
    reached = allowed.astype(value.dtype) @ nan.astype(value.dtype) > 0
    return np.where(reached, np.nan, weights @ np.where(nan, 0, value))


def nan_among_thousands(weights: Any, value: Any, allowed: Any) -> Any:
    """Care is taken where the largest value is no number; of thousands, the maximum leaves NaN out (as XLA's does)."""
    largest = np.fmax if value.size > 4096 else np.maximum
    if np.isfinite(largest.reduce(np.abs(value), axis=None, initial=0)):
        return weights @ value
    return right.weighted_sum(weights, value, allowed)


def keys_that_nobody_sees(weights: Any, value: Any, allowed: Any) -> Any:
    """Only values that no row attends to are taken out of the way."""
    seen = allowed.any(axis=2)[..., None]
    return weights @ np.where(seen, value, 0)


def naive(scores: Function) -> dict[str, Function]:
    """Forbidden scores are -inf, and every pair takes part in all sums."""
    return {
        "products": lambda query, key, allowed: query @ key.swapaxes(-1, -2),
        "scores": scores,
        "maximum": lambda scores, allowed, sinks: right.maximum(scores, np.ones_like(allowed), sinks),
        "exponentials": lambda shifted, allowed: np.exp(shifted),
        "normalized": lambda exponentials, total, allowed: exponentials / np.where(total == 0, 1, total),
    }


def minus_infinity_added(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """NaN and infinity in the key outlast it."""
    return right.scores(products, scale, softcap, bias, allowed) + np.where(allowed, 0, -np.inf).astype(products.dtype)


def masked_before_the_bias(products: Any, scale: float, softcap: float | None, bias: Any, allowed: Any) -> Any:
    """NaN and infinity in the bias outlast it."""
    scores = np.where(allowed, right.scores(products, scale, softcap, None, allowed), -np.inf)
    return scores if bias is None else scores + bias


def nan_in_the_maximum(scores: Any, allowed: Any, sinks: Any) -> Any:
    """A forbidden NaN is left out of the scores, but not of their maximum."""
    largest = right.maximum(scores, allowed, sinks)
    return np.where(np.isnan(scores).any(-1, keepdims=True), np.nan, largest)


def merged_by_products(weights: Any, outputs: Any, seen: Any) -> Any:
    return (weights[..., None] * outputs).sum(axis=0)


HIDDEN = (
    leaking("weights of 0 times hidden values", weighted_sum=zero_times),
    leaking("hidden infinities in the values", weighted_sum=only_nan),
    leaking("hidden NaN among thousands of values", weighted_sum=nan_among_thousands),
    leaking("-inf added to hidden products", **naive(minus_infinity_added)),
    leaking("hidden numbers in the bias", **naive(masked_before_the_bias)),
    leaking("hidden NaN in the maximum", products=lambda query, key, allowed: query @ key.swapaxes(-1, -2),
            maximum=nan_in_the_maximum),
    Fault("MASK-7", "hidden NaN in the weights", "attention_weights",
          attention_weights_by(RIGHT._replace(**naive(minus_infinity_added))), attention_weights),
    Fault("MASK-7", "hidden NaN in the log-sum-exp", "attention_logsumexp",
          attention_logsumexp_by(RIGHT._replace(**naive(minus_infinity_added))), attention_logsumexp),
    Fault("MASK-7", "output of a part that saw nothing", "merge_attention",
          merge_attention_by(MERGING._replace(mixed=merged_by_products)), merge_attention),
    Fault("MASK-7", "hidden NaN in the query's gradient", "attention",
          differentiated(GRADIENTS._replace(query_bar=lambda bar, key, scale, allowed: scale * bar @ key)),
          attention_with_gradients),
    Fault("MASK-7", "hidden NaN in the weights' gradient", "attention",
          differentiated(GRADIENTS._replace(weights_bar=lambda bar, value, reach: bar @ value.swapaxes(-1, -2),
                                            row_mean=lambda w, bar, allowed: (w * bar).sum(-1, keepdims=True))),
          attention_with_gradients),
)  # fmt: skip

# --- attended ---------------------------------------------------------------------------------------------------------


def over_the_row(weights: Any, value: Any, allowed: Any) -> Any:
    """One NaN in a row's result makes the whole row NaN."""
    output = right.weighted_sum(weights, value, allowed)
    return np.where(np.isnan(output).any(-1, keepdims=True), np.nan, output)


def finite_values(weights: Any, value: Any, allowed: Any) -> Any:
    return weights @ np.nan_to_num(value, nan=0, posinf=0, neginf=0)


def no_nan(exponentials: Any, total: Any, allowed: Any) -> Any:
    return np.nan_to_num(right.normalized(exponentials, total, allowed))


def over_the_batch(output: Any, dtype: Any) -> Any:
    """NaN anywhere in a batch element makes all of it NaN."""
    return np.where(np.isnan(output).any((1, 2, 3), keepdims=True), np.nan, output).astype(dtype)


def where_weights_count(weights: Any, value: Any, allowed: Any) -> Any:
    """A weight of 0 takes nothing, as if it were a mask."""
    return right.weighted_sum(weights, value, allowed & (weights != 0))


def clipped(output: Any, dtype: Any) -> Any:
    """Into the range of float16, which turns NaN into its largest number."""
    return np.where(np.isnan(output), 65504, np.clip(output, -65504, 65504)).astype(dtype)


ATTENDED = (
    special("NaN swallowed at the end", rounded=lambda output, dtype: np.nan_to_num(output).astype(dtype)),
    special("NaN swallowed in the softmax", normalized=no_nan),
    special("NaN swallowed in the values", weighted_sum=finite_values),
    special("NaN turned into a large number", rounded=clipped),
    special("NaN in one feature of a value for all", weighted_sum=over_the_row),
    special("NaN in one row for the whole batch element", rounded=over_the_batch),
    special("values hidden from some rows only", weighted_sum=keys_that_nobody_sees),
    special("values of weight 0 skipped", weighted_sum=where_weights_count),
)  # fmt: skip

# --- dropout ----------------------------------------------------------------------------------------------------------


def dropping(name: str, dropout: Function, **steps: Function) -> Fault:
    return Fault("ATT-11", name, "attention", attention_by(RIGHT._replace(dropout=dropout, **steps)), attention)


def dropped(weights: Any, keep: Any, factor: float) -> Any:
    return weights if keep is None else weights * keep * weights.dtype.type(factor)


def renormalized(weights: Any, keep: Any, rate: float) -> Any:
    if keep is None:
        return weights
    left = weights * keep
    sums = left.sum(-1, keepdims=True)
    return left / np.where(sums == 0, 1, sums)


def masked_first(
    query: Any, key: Any, value: Any, *, mask: Any = None, dropout_keep: Any = None, dropout_rate: float = 0.0
) -> Any:
    """Dropped pairs are forbidden ones."""
    if dropout_keep is not None:
        mask = dropout_keep if mask is None else mask & dropout_keep
    return attention(query, key, value, mask=mask)


DROPOUT = (
    dropping("weights not divided by 1 - rate", lambda weights, keep, rate: dropped(weights, keep, 1)),
    dropping("weights divided by the rate", lambda weights, keep, rate: dropped(weights, keep, 1 / max(rate, 1e-3))),
    dropping("weights multiplied by 1 - rate", lambda weights, keep, rate: dropped(weights, keep, 1 - rate)),
    dropping("kept weights dropped",
             lambda weights, keep, rate: dropped(weights, None if keep is None else ~keep, 1 / (1 - rate))),
    dropping("weights normalised again", renormalized),
    dropping("the same weights of every head dropped", lambda weights, keep, rate: right.dropout(
        weights, None if keep is None else keep[:, :1], rate)),
    Fault("ATT-11", "dropout before the softmax", "attention", masked_first, attention),
)  # fmt: skip

FAULTS = (*HIDDEN, *ATTENDED, *DROPOUT)
