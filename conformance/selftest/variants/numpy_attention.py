"""Attention in NumPy, computed in other ways than the definition does, with gradients by hand.

Each keeps every rule, in the plain contract: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], and a mask of
booleans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.variants.numpy_pieces import (
    Problem,
    Product,
    backwards,
    capped,
    finite,
    first_maximum,
    masked_sum,
    pairwise,
    problem,
    transposed,
)
from reference_numpy.attention_steps_vjp import sum_broadcast, sum_groups

Compute = Callable[[Problem], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""From a problem to the output [B, H, Q, V], and every row's maximum and total of exponentials, both [B, H, Q, 1].

The log-sum-exp is maximum + log(total). Whoever keeps only their sum loses the logarithm beside a maximum of 1e5 or
more, and with it the weights that a backward pass computes once more (ATT-4).
"""


# --- forwards ---------------------------------------------------------------------------------------------------------


def in_blocks(size: int) -> Compute:
    """Online softmax: blocks of keys, each of which may raise the running maximum and rescales what came before."""

    def compute(p: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        query, maximum = p.query * p.query.dtype.type(p.scale), first_maximum(p)
        total = np.where(maximum == -np.inf, 0, np.ones_like(maximum)) * (p.sinks is not None)
        output = np.zeros((*p.query.shape[:3], p.value.shape[-1]), p.query.dtype)
        for start in range(0, p.key.shape[2], size):
            keys = slice(start, start + size)
            scores = capped(query @ transposed(p.key[:, :, keys]), p, keys)
            raised = np.maximum(maximum, scores.max(axis=-1, keepdims=True))
            factor = np.exp(maximum - finite(raised))
            weights = np.exp(scores - finite(raised))
            total = total * factor + weights.sum(axis=-1, keepdims=True)
            summed = masked_sum(weights, p.value[:, :, keys], p.allowed[..., keys], np.matmul)
            output, maximum = output * factor + summed, raised
        return divided(output, total, p), finite(maximum), total

    return compute


def in_two_passes(product: Product) -> Compute:
    """Maximum first, then exponentials, divided at the end; the root of the scale on either side of the product."""

    def compute(p: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = split_scores(p, product)
        maximum = finite(np.max(np.concatenate([scores, first_maximum(p)], axis=-1), axis=-1, keepdims=True))
        weights = np.exp(scores - maximum)
        total = product(weights, np.ones((weights.shape[-1], 1), weights.dtype))
        if p.sinks is not None:
            total = total + np.exp(p.sinks[:, None, None] - maximum)
        output = masked_sum(weights, p.value, p.allowed, product)
        return divided(output, total, p), maximum, total

    return compute


def split_scores(p: Problem, product: Product) -> np.ndarray:
    root = p.query.dtype.type(np.sqrt(abs(p.scale)))
    return capped(product(p.query * root, transposed(p.key * (root * p.query.dtype.type(np.sign(p.scale))))), p)


def divided(output: np.ndarray, total: np.ndarray, p: Problem) -> np.ndarray:
    """output / total, and 0 in rows that allow nothing."""
    return np.where(p.allowed.any(axis=-1, keepdims=True), output / np.where(total == 0, 1, total), 0)


# --- backwards --------------------------------------------------------------------------------------------------------


def gradients(
    p: Problem,
    computed: tuple[np.ndarray, np.ndarray, np.ndarray],
    output_bar: np.ndarray,
    groups: int,
    product: Product,
) -> dict[str, np.ndarray]:
    """As blocked kernels do: weights once more from the log-sum-exp, and the mean as rowsum(O_bar * O)."""
    output, maximum, total = computed
    logarithm = np.where(total == 0, 0, np.log(total))
    weights = np.where(p.allowed, np.exp(split_scores(p, product) - maximum - logarithm), 0)
    mean = np.sum(output_bar * output, axis=-1, keepdims=True)
    weights_bar = np.where(p.allowed, product(output_bar, transposed(p.value)), 0)
    scores_bar = np.where(p.allowed, weights * (weights_bar - mean), 0)
    raw, turned = scores_bar * slope(p), transposed(p.allowed)
    found = {
        "query": p.scale * masked_sum(raw, p.key, p.allowed, product),
        "key": sum_groups(p.scale * masked_sum(transposed(raw), p.query, turned, product), groups),
        "value": sum_groups(masked_sum(transposed(weights), output_bar, turned, product), groups),
    }
    if p.bias is not None:
        found["bias"] = scores_bar
    if p.sinks is not None:
        sink = np.where(p.sinks[:, None, None] == -np.inf, 0, np.exp(p.sinks[:, None, None] - maximum - logarithm))
        found["sinks"] = -np.sum(sink * mean, axis=(0, 2, 3))
    return found


def slope(p: Problem) -> np.ndarray | float:
    """Of the softcap."""
    if p.softcap is None:
        return 1.0
    products = np.where(p.allowed, p.query @ transposed(p.key), 0)
    return 1 - np.tanh(products * p.scale / p.softcap) ** 2


# --- as functions -----------------------------------------------------------------------------------------------------


def attention_by(compute: Compute, product: Product, name: str) -> Callable[..., Any]:
    """The function in the plain contract, with its gradients declared."""

    @np.errstate(all="ignore")
    def vjp(
        query: Any,
        key: Any,
        value: Any,
        cotangent: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> dict[str, Any]:
        given = {"query": query, "key": key, "value": value, "bias": bias, "sinks": sinks}
        p = problem(query, key, value, mask, bias, scale, softcap, sinks)
        found = gradients(p, compute(p), cotangent.astype(p.query.dtype), key.shape[1], product)
        if bias is not None:
            found["bias"] = sum_broadcast(found["bias"], bias)
        return {name: gradient.astype(given[name].dtype) for name, gradient in found.items()}

    @declare(vjp=vjp)
    @np.errstate(all="ignore")
    def attention(
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> Any:
        output, _, _ = compute(problem(query, key, value, mask, bias, scale, softcap, sinks))
        return output.astype(query.dtype)

    attention.__qualname__ = attention.__name__ = name
    return attention


online_16 = attention_by(in_blocks(16), np.matmul, "online_16")
summed_backwards = attention_by(in_two_passes(backwards), backwards, "summed_backwards")
summed_pairwise = attention_by(in_two_passes(pairwise), pairwise, "summed_pairwise")
