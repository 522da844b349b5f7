"""Losses over classes, and those that keep routers in balance, defined (rules LOSS-1, LOSS-2 and MOE-6).

    log-probabilities = logits - log-sum-exp of the row
    loss of a row     = -sum over classes of the mixed target * log-probability
    mixed target      = (1 - label_smoothing) * one-hot of the target + label_smoothing / V

The smoothing is that of Szegedy et al., arXiv 1512.00567, section 7, which "Attention Is All You Need", section 5.4,
uses. The losses of routers are those of the Switch Transformer, arXiv 2101.03961, and of ST-MoE, arXiv 2202.08906.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.experts import choose_experts, softmax, spread
from specification import checks

__all__ = ["cross_entropy", "load_balancing_loss", "nll_loss", "router_z_loss"]


def counted_targets(
    targets: Integer[np.ndarray, "..."], classes: int, ignore: int | None
) -> tuple[Bool[np.ndarray, "..."], Integer[np.ndarray, "..."]]:
    """Which targets count, and the class of each, with 0 in place of one that does not."""
    checks.targets_within(targets, classes, ignore)
    counted = np.ones(targets.shape, bool) if ignore is None else np.asarray(targets != ignore)
    return counted, np.where(counted, targets, 0).astype(np.intp)


def at_targets(rows: Float[np.ndarray, "*rows V"], classes: Integer[np.ndarray, "*rows"]) -> Any:
    """The number of each row at its class."""
    return np.take_along_axis(rows, classes[..., None], axis=-1)[..., 0]


def row_losses(
    logits: Float[np.ndarray, "*rows V"], classes: Integer[np.ndarray, "*rows"], smoothing: float
) -> Float[np.ndarray, "*rows"]:
    """The loss of each row. The maximum is subtracted before anything else, so a constant added to a row costs nothing.

    Without smoothing no class but the target is multiplied by its share of 0, which would be NaN where its logit is
    -inf.
    """
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    logsumexp = np.log(np.sum(np.exp(shifted), axis=-1))
    losses = logsumexp - at_targets(shifted, classes)
    if smoothing > 0:
        losses = (1 - smoothing) * losses + smoothing * (logsumexp - np.mean(shifted, axis=-1))
    return losses


def reduced(losses: Float[np.ndarray, "*rows"], counted: Bool[np.ndarray, "*rows"], reduction: str) -> Any:
    """All losses, their sum, or their mean over the rows that count: 0 where none does."""
    losses = np.where(counted, losses, 0)
    if reduction == "none":
        return losses
    total = np.sum(losses)
    return total if reduction == "sum" else total / max(np.sum(counted), 1)


@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def cross_entropy(
    logits: Float[np.ndarray, "*rows V"],
    targets: Integer[np.ndarray, "*rows"],
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[np.ndarray, "..."]:
    """Compute the cross-entropy of softmax(logits) and the targets, and round once (LOSS-1).

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
    losses = row_losses(widen(logits), classes, float(label_smoothing))
    return np.asarray(reduced(losses, counted, reduction), logits.dtype)


def real_tokens(
    router_logits: Float[np.ndarray, "*tokens X"], token_mask: Bool[np.ndarray, "*tokens"] | None
) -> Bool[np.ndarray, "*tokens"]:
    """Which tokens count: all without a mask."""
    return np.ones(router_logits.shape[:-1], bool) if token_mask is None else token_mask


def expert_shares(
    logits: Float[np.ndarray, "*tokens X"], chosen: int, real: Bool[np.ndarray, "*tokens"]
) -> Float[np.ndarray, "X"]:
    """How many of the tokens choose an expert, of each expert, divided by the number of tokens."""
    indices, _ = choose_experts(logits, chosen, 1, 1, "largest")
    choices = spread(np.ones(indices.shape, logits.dtype), indices, logits.shape[-1])
    return np.sum(choices[real], axis=0) / max(np.sum(real), 1)


def row_logsumexps(logits: Float[np.ndarray, "*rows V"]) -> Float[np.ndarray, "*rows"]:
    """The log-sum-exp of each row."""
    largest = np.max(logits, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(logits - largest), axis=-1)) + largest[..., 0]


@np.errstate(all="ignore")
def load_balancing_loss(
    router_logits: Float[np.ndarray, "*tokens X"],
    *,
    chosen: int,
    token_mask: Bool[np.ndarray, "*tokens"] | None = None,
) -> Float[np.ndarray, ""]:
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
    logits = widen(router_logits)
    shares = expert_shares(logits, chosen, real)
    probabilities = np.sum(softmax(logits)[real], axis=0) / max(np.sum(real), 1)
    return np.asarray(logits.shape[-1] * np.sum(shares * probabilities), router_logits.dtype)


@np.errstate(all="ignore")
def nll_loss(
    log_probabilities: Float[np.ndarray, "*rows V"],
    targets: Integer[np.ndarray, "*rows"],
    *,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[np.ndarray, "..."]:
    """Compute the negative log-probability of the targets, and round once (LOSS-2).

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
    losses = -widen(at_targets(log_probabilities, classes))
    return np.asarray(reduced(losses, counted, reduction), log_probabilities.dtype)


@np.errstate(all="ignore")
def router_z_loss(
    router_logits: Float[np.ndarray, "*tokens X"], *, token_mask: Bool[np.ndarray, "*tokens"] | None = None
) -> Float[np.ndarray, ""]:
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
    losses = row_logsumexps(widen(router_logits)) ** 2
    return np.asarray(reduced(losses, real, "mean"), router_logits.dtype)
