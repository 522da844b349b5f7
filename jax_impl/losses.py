"""Losses over classes, and those that keep routers in balance, in JAX (rules LOSS-1, LOSS-2 and MOE-6).

A target outside [0, V) makes its row's loss NaN where targets are traced.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Bool, Float, Integer

from jax_impl.dtypes import cast, widen
from jax_impl.experts import choose_experts, softmax, spread
from specification import checks

__all__ = ["cross_entropy", "load_balancing_loss", "nll_loss", "router_z_loss"]


def counted_targets(
    targets: Integer[jax.Array, "..."], classes: int, ignore: int | None
) -> tuple[Bool[jax.Array, "..."], Integer[jax.Array, "..."]]:
    """Which targets count, and the class of each, with 0 in place of one that does not."""
    if not isinstance(targets, jax.core.Tracer):
        checks.targets_within(np.asarray(targets), classes, ignore)
    targets = to_int32(targets)  # `ignore` need not fit in their own dtype
    counted = jnp.ones(targets.shape, bool) if ignore is None else targets != int(ignore)
    return counted, jnp.where(counted, targets, 0)


def to_int32(targets: Integer[jax.Array, "..."]) -> Integer[jax.Array, "..."]:
    """Targets that are too large for 32 bits stay too large for a class, and negative ones negative."""
    limits, narrow = jnp.iinfo(targets.dtype), jnp.iinfo(jnp.int32)
    if limits.bits > 32 or limits.max > narrow.max:
        targets = jnp.clip(targets, max(limits.min, narrow.min), narrow.max)
    return cast(targets, jnp.int32)


@jax.jit
def at_targets(rows: Float[jax.Array, "*rows V"], classes: Integer[jax.Array, "*rows"]) -> Float[jax.Array, "*rows"]:
    """The number of each row at its class; NaN for what lies outside, where JAX would count backwards."""
    classes = jnp.where(classes < 0, rows.shape[-1], classes)
    return jnp.take_along_axis(rows, classes[..., None], axis=-1, mode="fill", fill_value=jnp.nan)[..., 0]


@partial(jax.jit, static_argnums=2)
def row_losses(
    logits: Float[jax.Array, "*rows V"], classes: Integer[jax.Array, "*rows"], smoothing: float
) -> Float[jax.Array, "*rows"]:
    """The loss of each row.

    The maximum is a constant to the gradient: it cancels out of the loss, and would only leave rounding errors behind.
    """
    shifted = logits - stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    logsumexp = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
    losses = logsumexp - at_targets(shifted, classes)
    if smoothing > 0:
        losses = (1 - smoothing) * losses + smoothing * (logsumexp - jnp.mean(shifted, axis=-1))
    return losses


@partial(jax.jit, static_argnums=2)
def reduced(losses: Float[jax.Array, "*rows"], counted: Bool[jax.Array, "*rows"], reduction: str) -> Any:
    """All losses, their sum, or their mean over the rows that count: 0 where none does."""
    losses = jnp.where(counted, losses, 0)
    if reduction == "none":
        return losses
    total = jnp.sum(losses)
    return total if reduction == "sum" else total / jnp.maximum(jnp.sum(counted), 1)


def cross_entropy(
    logits: Float[jax.Array, "*rows V"],
    targets: Integer[jax.Array, "*rows"],
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[jax.Array, "..."]:
    """Compute the cross-entropy of softmax(logits) and the targets, and round once (LOSS-1).

    `label_smoothing`, `ignore` and `reduction` are static.

    Args:
        logits: [..., V], in float16, bfloat16, float32 or float64.
        targets: Integers [...] in [0, V), the class of each row. Negative ones do not count from the end.
        label_smoothing: In [0, 1). The share of a target that is spread over all V classes alike, its own too.
        ignore: A target that does not count, which may lie outside [0, V). Nothing of its row reaches a result or a
            gradient, NaN included.
        reduction: "mean" over the targets that count, 0 where none does; "sum" of them; "none": [...], with 0 for a
            target that does not count.

    Returns:
        A new array in the dtype of logits.

    Raises:
        TypeError: Targets that are not integers, other dtypes, or a number that is none.
        ValueError: A target outside [0, V), shapes that do not fit, or another smoothing or reduction.
    """
    checks.cross_entropy(logits, targets, label_smoothing, ignore, reduction)
    counted, classes = counted_targets(targets, logits.shape[-1], ignore)
    # Rows that do not count are 0 before any arithmetic: their gradient of 0 times NaN would be NaN.
    rows = jnp.where(counted[..., None], widen(logits), 0)
    losses = row_losses(rows, classes, float(label_smoothing))
    return cast(reduced(losses, counted, reduction), logits.dtype)


def real_tokens(
    router_logits: Float[jax.Array, "*tokens X"], token_mask: Bool[jax.Array, "*tokens"] | None
) -> Bool[jax.Array, "*tokens"]:
    """Which tokens count: all without a mask."""
    return jnp.ones(router_logits.shape[:-1], bool) if token_mask is None else jnp.asarray(token_mask)


def expert_shares(
    logits: Float[jax.Array, "*tokens X"], chosen: int, real: Bool[jax.Array, "*tokens"]
) -> Float[jax.Array, "X"]:
    """How many of the tokens choose an expert, of each expert, divided by the number of tokens."""
    indices, _ = choose_experts(logits, chosen, 1, 1, "largest")
    choices = jnp.where(real[..., None], spread(jnp.ones(indices.shape, logits.dtype), indices, logits.shape[-1]), 0)
    return jnp.sum(choices, axis=tuple(range(real.ndim))) / jnp.maximum(jnp.sum(real), 1)


def row_logsumexps(logits: Float[jax.Array, "*rows V"]) -> Float[jax.Array, "*rows"]:
    """The log-sum-exp of each row."""
    largest = stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    return jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]


def load_balancing_loss(
    router_logits: Float[jax.Array, "*tokens X"],
    *,
    chosen: int,
    token_mask: Bool[jax.Array, "*tokens"] | None = None,
) -> Float[jax.Array, ""]:
    """Compute X * sum over experts of (share of tokens that choose it * mean probability), and round once (MOE-6).

    Args:
        router_logits: [..., X], in float16, bfloat16, float32 or float64.
        chosen: How many experts a token chooses: those with the largest logits, of equal ones the first. The choice
            has no gradient.
        token_mask: [...], True = a token. Nothing of the others reaches the result or a gradient, NaN included.

    Returns:
        A new array without axes in the dtype of router_logits; 0 where there is no token.

    Raises:
        TypeError: Dtypes that are not as described.
        ValueError: Shapes or numbers that do not fit.
    """
    checks.load_balancing_loss(router_logits, chosen, token_mask)
    real = real_tokens(router_logits, token_mask)
    logits = jnp.where(real[..., None], widen(router_logits), 0)
    shares = expert_shares(logits, chosen, real)
    probabilities = jnp.where(real[..., None], softmax(logits), 0)
    probabilities = jnp.sum(probabilities, axis=tuple(range(real.ndim))) / jnp.maximum(jnp.sum(real), 1)
    return cast(logits.shape[-1] * jnp.sum(shares * probabilities), router_logits.dtype)


def nll_loss(
    log_probabilities: Float[jax.Array, "*rows V"],
    targets: Integer[jax.Array, "*rows"],
    *,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[jax.Array, "..."]:
    """Compute the negative log-probability of the targets, and round once (LOSS-2).

    `ignore` and `reduction` are static.

    Args:
        log_probabilities: [..., V], in float16, bfloat16, float32 or float64; not normalised here. Only those of
            the targets that count reach a result, NaN included.
        targets: Integers [...] in [0, V), the class of each row. Negative ones do not count from the end.
        ignore: A target that does not count, which may lie outside [0, V).
        reduction: "mean" over the targets that count, 0 where none does; "sum" of them; "none": [...], with 0 for a
            target that does not count.

    Returns:
        A new array in the dtype of log_probabilities.

    Raises:
        TypeError: Targets that are not integers, other dtypes, or a number that is none.
        ValueError: A target outside [0, V), shapes that do not fit, or another reduction.
    """
    checks.nll_loss(log_probabilities, targets, ignore, reduction)
    counted, classes = counted_targets(targets, log_probabilities.shape[-1], ignore)
    losses = -at_targets(widen(log_probabilities), classes)
    return cast(reduced(losses, counted, reduction), log_probabilities.dtype)


def router_z_loss(
    router_logits: Float[jax.Array, "*tokens X"], *, token_mask: Bool[jax.Array, "*tokens"] | None = None
) -> Float[jax.Array, ""]:
    """Compute the mean over tokens of the squared log-sum-exp of their logits, and round once (MOE-6).

    Args:
        router_logits: [..., X], in float16, bfloat16, float32 or float64.
        token_mask: [...], True = a token. Nothing of the others reaches the result or a gradient, NaN included.

    Returns:
        A new array without axes in the dtype of router_logits; 0 where there is no token.

    Raises:
        TypeError: Dtypes that are not as described.
        ValueError: Shapes that do not fit.
    """
    checks.router_z_loss(router_logits, token_mask)
    real = real_tokens(router_logits, token_mask)
    logits = jnp.where(real[..., None], widen(router_logits), 0)
    losses = row_logsumexps(logits) ** 2
    return cast(reduced(losses, real, "mean"), router_logits.dtype)
