"""Gradients of the operations in `losses.py`, by hand."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.experts import softmax
from reference_numpy.experts_vjp import softmax_gradient
from reference_numpy.losses import counted_targets, expert_shares, real_tokens, row_logsumexps
from specification import checks
from specification.dtypes import dtype_name

__all__ = ["cross_entropy_vjp", "load_balancing_loss_vjp", "nll_loss_vjp", "router_z_loss_vjp"]


def row_cotangents(
    cotangent: Float[np.ndarray, "..."], counted: Bool[np.ndarray, "*rows"], reduction: str
) -> Float[np.ndarray, "*rows"]:
    """What each row's loss receives: a mean divides by the number of targets that count."""
    share = widen(cotangent) / max(np.sum(counted), 1) if reduction == "mean" else widen(cotangent)
    return np.where(counted, share, 0).astype(share.dtype)


def add_at_targets(
    rows: Float[np.ndarray, "*rows V"], classes: Integer[np.ndarray, "*rows"], summand: float | np.ndarray
) -> None:
    """Add to the number of each row at its class, in place."""
    at = np.take_along_axis(rows, classes[..., None], axis=-1)
    np.put_along_axis(rows, classes[..., None], at + summand, axis=-1)


@np.errstate(all="ignore")
def cross_entropy_vjp(
    logits: Float[np.ndarray, "*rows V"],
    targets: Integer[np.ndarray, "*rows"],
    cotangent: Float[np.ndarray, "..."],
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[np.ndarray, "*rows V"]:
    """Compute the gradient of logits: softmax(logits) less the mixed target, times what the row receives (LOSS-1).

    Args:
        logits, targets: As in `cross_entropy`.
        cotangent: Gradient with respect to the result of `cross_entropy`, in its shape and dtype.
        label_smoothing, ignore, reduction: As in `cross_entropy`.

    Returns:
        A new array in the shape and dtype of logits, 0 in the rows of targets that do not count.

    Raises:
        TypeError, ValueError: As in `cross_entropy`, and for a cotangent in another shape or dtype than its result.
    """
    checks.cross_entropy(logits, targets, label_smoothing, ignore, reduction)
    checks.cotangent(cotangent, targets.shape if reduction == "none" else (), dtype_name(logits))
    counted, classes = counted_targets(targets, logits.shape[-1], ignore)
    wide = widen(logits)
    exponentials = np.exp(wide - np.max(wide, axis=-1, keepdims=True))
    differences = exponentials / np.sum(exponentials, axis=-1, keepdims=True)
    if label_smoothing > 0:
        differences = differences - float(label_smoothing) / logits.shape[-1]
    add_at_targets(differences, classes, float(label_smoothing) - 1)
    received = row_cotangents(cotangent, counted, reduction)[..., None]
    return np.where(counted[..., None], differences * received, 0).astype(logits.dtype)


@np.errstate(all="ignore")
def load_balancing_loss_vjp(
    router_logits: Float[np.ndarray, "*tokens X"],
    cotangent: Float[np.ndarray, ""],
    *,
    chosen: int,
    token_mask: Bool[np.ndarray, "*tokens"] | None = None,
) -> Float[np.ndarray, "*tokens X"]:
    """Compute the gradient of router_logits, through the probabilities; the shares are constants (MOE-6).

    Args:
        router_logits: As in `load_balancing_loss`.
        cotangent: Gradient with respect to the result of `load_balancing_loss`, without axes, in its dtype.
        chosen, token_mask: As in `load_balancing_loss`.

    Returns:
        A new array in the shape and dtype of router_logits, 0 for what is no token.

    Raises:
        TypeError, ValueError: As in `load_balancing_loss`, and for a cotangent in another shape or dtype than its
            result.
    """
    checks.load_balancing_loss(router_logits, chosen, token_mask)
    checks.cotangent(cotangent, (), dtype_name(router_logits))
    real = real_tokens(router_logits, token_mask)
    logits = widen(router_logits)
    shares = expert_shares(logits, chosen, real)
    received = logits.shape[-1] * row_cotangents(cotangent, real, "mean")[..., None] * shares
    return np.where(real[..., None], softmax_gradient(softmax(logits), received), 0).astype(router_logits.dtype)


@np.errstate(all="ignore")
def nll_loss_vjp(
    log_probabilities: Float[np.ndarray, "*rows V"],
    targets: Integer[np.ndarray, "*rows"],
    cotangent: Float[np.ndarray, "..."],
    *,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[np.ndarray, "*rows V"]:
    """Compute the gradient of log_probabilities: minus what the row receives at its target, 0 elsewhere (LOSS-2).

    Args:
        log_probabilities, targets: As in `nll_loss`.
        cotangent: Gradient with respect to the result of `nll_loss`, in its shape and dtype.
        ignore, reduction: As in `nll_loss`.

    Returns:
        A new array in the shape and dtype of log_probabilities.

    Raises:
        TypeError, ValueError: As in `nll_loss`, and for a cotangent in another shape or dtype than its result.
    """
    checks.nll_loss(log_probabilities, targets, ignore, reduction)
    checks.cotangent(cotangent, targets.shape if reduction == "none" else (), dtype_name(log_probabilities))
    counted, classes = counted_targets(targets, log_probabilities.shape[-1], ignore)
    gradient = np.zeros_like(widen(log_probabilities))
    add_at_targets(gradient, classes, -row_cotangents(cotangent, counted, reduction)[..., None])
    return gradient.astype(log_probabilities.dtype)


@np.errstate(all="ignore")
def router_z_loss_vjp(
    router_logits: Float[np.ndarray, "*tokens X"],
    cotangent: Float[np.ndarray, ""],
    *,
    token_mask: Bool[np.ndarray, "*tokens"] | None = None,
) -> Float[np.ndarray, "*tokens X"]:
    """Compute the gradient of router_logits: 2 * log-sum-exp * softmax, times what the token's square receives (MOE-6).

    Args:
        router_logits: As in `router_z_loss`.
        cotangent: Gradient with respect to the result of `router_z_loss`, without axes, in its dtype.
        token_mask: As in `router_z_loss`.

    Returns:
        A new array in the shape and dtype of router_logits, 0 for what is no token.

    Raises:
        TypeError, ValueError: As in `router_z_loss`, and for a cotangent in another shape or dtype than its result.
    """
    checks.router_z_loss(router_logits, token_mask)
    checks.cotangent(cotangent, (), dtype_name(router_logits))
    real = real_tokens(router_logits, token_mask)
    logits = widen(router_logits)
    received = 2 * row_logsumexps(logits) * row_cotangents(cotangent, real, "mean")
    return np.where(real[..., None], received[..., None] * softmax(logits), 0).astype(router_logits.dtype)
