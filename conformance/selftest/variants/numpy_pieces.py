"""What the NumPy variants of attention share: their inputs made ready, and sums taken in other orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reference_numpy.attention_steps import repeat_heads, resolve_scale, visible_pairs
from reference_numpy.dtypes import widen
from reference_numpy.masks import checked_mask

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""left [..., Q, D] @ right [..., D, K]."""


class Problem(NamedTuple):
    """Inputs in the dtype of the arithmetic, with a key head for every query head; a bias [B or 1, H or 1, Q, K]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    allowed: np.ndarray  # [B, H, Q, K]
    bias: np.ndarray | None
    sinks: np.ndarray | None
    scale: float
    softcap: float | None


def problem(query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: Any, softcap: Any, sinks: Any) -> Problem:
    (B, H, Q, D), K = query.shape, key.shape[2]
    allowed, bias = visible_pairs(checked_mask(mask, Q, K, B, H), bias, Q, K, slice(None))
    wide = widen(query), repeat_heads(widen(key), H), repeat_heads(widen(value), H)
    allowed = np.broadcast_to(allowed, (B, H, Q, K))
    return Problem(*wide, allowed, widen(bias), widen(sinks), resolve_scale(scale, D), softcap)


def capped(products: np.ndarray, p: Problem, keys: slice = slice(None)) -> np.ndarray:
    """Scores of the allowed pairs from scaled products, -inf for the others."""
    scores = products if p.softcap is None else p.softcap * np.tanh(products / p.softcap)
    if p.bias is not None:
        scores = scores + p.bias[..., keys]
    return np.where(p.allowed[..., keys], scores, -np.inf)


def first_maximum(p: Problem) -> np.ndarray:
    """Of a row of which no key has been seen: its sink, or -inf. [B, H, Q, 1]."""
    shape = (*p.query.shape[:3], 1)
    return np.full(shape, -np.inf, p.query.dtype) if p.sinks is None else np.broadcast_to(p.sinks[:, None, None], shape)


def finite(maximum: np.ndarray) -> np.ndarray:
    """0 in place of -inf, so that a row without weight gets 0 and not NaN."""
    return np.where(maximum == -np.inf, 0, maximum)


def masked_sum(weights: np.ndarray, values: np.ndarray, allowed: np.ndarray, product: Product) -> np.ndarray:
    """weights @ values in which forbidden NaN and infinity have no part, and allowed ones give NaN."""
    good = np.isfinite(values)
    output = product(weights, np.where(good, values, 0))
    if good.all():
        return output
    return np.where(np.matmul(allowed.astype(values.dtype), (~good).astype(values.dtype)) > 0, np.nan, output)


def transposed(array: np.ndarray) -> np.ndarray:
    return np.swapaxes(array, -1, -2)


# --- sums in other orders ---------------------------------------------------------------------------------------------


def backwards(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right, one term added after the other from the last to the first."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for i in reversed(range(left.shape[-1])):
        total += left[..., i, None] * right[..., i, None, :]
    return total


def pairwise(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right, each half of the terms added up by itself."""
    n = left.shape[-1]
    if n <= 1:
        return np.matmul(left, right)
    half = n // 2
    return pairwise(left[..., :half], right[..., :half, :]) + pairwise(left[..., half:], right[..., half:, :])
