"""Losses over classes and of routers in PyTorch (LOSS-1, LOSS-2 and MOE-6), as in `reference_numpy/losses.py`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Integer

from specification import checks
from torch_impl.dtypes import widen
from torch_impl.experts import choose_experts, softmax, spread
from torch_impl.masks import readable

__all__ = ["cross_entropy", "load_balancing_loss", "nll_loss", "router_z_loss"]


def counted_targets(
    targets: Integer[torch.Tensor, "..."], classes: int, ignore: int | None
) -> tuple[Bool[torch.Tensor, "..."], Integer[torch.Tensor, "..."]]:
    """Which targets count, and the class of each, with 0 in place of one that does not."""
    if (values := readable(targets)) is not None:
        checks.targets_within(values, classes, ignore)
    targets = targets.to(torch.int64)  # `ignore` need not fit in their own dtype
    counted = torch.ones_like(targets, dtype=torch.bool) if ignore is None else targets != int(ignore)
    return counted, torch.where(counted, targets, 0)


def at_targets(
    rows: Float[torch.Tensor, "*rows V"], classes: Integer[torch.Tensor, "*rows"]
) -> Float[torch.Tensor, "*rows"]:
    """The number of each row at its class."""
    return torch.gather(rows, -1, classes[..., None])[..., 0]


def row_losses(
    logits: Float[torch.Tensor, "*rows V"], classes: Integer[torch.Tensor, "*rows"], smoothing: float
) -> Float[torch.Tensor, "*rows"]:
    """The loss of each row.

    The maximum is a constant to the gradient: it cancels out of the loss, and would only leave rounding errors behind.
    """
    shifted = logits - torch.amax(logits, dim=-1, keepdim=True).detach()
    logsumexp = torch.log(torch.sum(torch.exp(shifted), dim=-1))
    losses = logsumexp - at_targets(shifted, classes)
    if smoothing > 0:
        losses = (1 - smoothing) * losses + smoothing * (logsumexp - torch.mean(shifted, dim=-1))
    return losses


def reduced(
    losses: Float[torch.Tensor, "*rows"], counted: Bool[torch.Tensor, "*rows"], reduction: str
) -> Float[torch.Tensor, "..."]:
    """All losses, their sum, or their mean over the rows that count: 0 where none does."""
    losses = torch.where(counted, losses, 0)
    if reduction == "none":
        return losses
    total = torch.sum(losses)
    return total if reduction == "sum" else total / torch.clamp(torch.sum(counted), min=1)


def cross_entropy(
    logits: Float[torch.Tensor, "*rows V"],
    targets: Integer[torch.Tensor, "*rows"],
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[torch.Tensor, "..."]:
    """Compute the cross-entropy of softmax(logits) and the targets, and round once (LOSS-1).

    Where targets cannot be read (see `masks.readable`) they are not checked here. PyTorch then refuses one outside
    [0, V) with an error of its own, which on CUDA is a device assertion.

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
    rows = torch.where(counted[..., None], widen(logits), 0)
    losses = row_losses(rows, classes, float(label_smoothing))
    return reduced(losses, counted, reduction).to(logits.dtype)


def real_tokens(
    router_logits: Float[torch.Tensor, "*tokens X"], token_mask: Bool[torch.Tensor, "*tokens"] | None
) -> Bool[torch.Tensor, "*tokens"]:
    """Which tokens count: all without a mask."""
    if token_mask is None:
        return torch.ones(router_logits.shape[:-1], dtype=torch.bool, device=router_logits.device)
    return token_mask


def expert_shares(
    logits: Float[torch.Tensor, "*tokens X"], chosen: int, real: Bool[torch.Tensor, "*tokens"]
) -> Float[torch.Tensor, "X"]:
    """How many of the tokens choose an expert, of each expert, divided by the number of tokens."""
    indices, _ = choose_experts(logits, chosen, 1, 1, "largest")
    choices = torch.where(
        real[..., None], spread(torch.ones_like(indices, dtype=logits.dtype), indices, logits.shape[-1]), 0
    )
    return torch.sum(choices.flatten(0, -2), dim=0) / torch.clamp(torch.sum(real), min=1)


def row_logsumexps(logits: Float[torch.Tensor, "*rows V"]) -> Float[torch.Tensor, "*rows"]:
    """The log-sum-exp of each row."""
    largest = torch.amax(logits, dim=-1, keepdim=True).detach()
    return torch.log(torch.sum(torch.exp(logits - largest), dim=-1)) + largest[..., 0]


def load_balancing_loss(
    router_logits: Float[torch.Tensor, "*tokens X"],
    *,
    chosen: int,
    token_mask: Bool[torch.Tensor, "*tokens"] | None = None,
) -> Float[torch.Tensor, ""]:
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
    logits = torch.where(real[..., None], widen(router_logits), 0)
    shares = expert_shares(logits, chosen, real)
    probabilities = torch.where(real[..., None], softmax(logits), 0)
    probabilities = torch.sum(probabilities.flatten(0, -2), dim=0) / torch.clamp(torch.sum(real), min=1)
    return (logits.shape[-1] * torch.sum(shares * probabilities)).to(router_logits.dtype)


def nll_loss(
    log_probabilities: Float[torch.Tensor, "*rows V"],
    targets: Integer[torch.Tensor, "*rows"],
    *,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Float[torch.Tensor, "..."]:
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
    return reduced(losses, counted, reduction).to(log_probabilities.dtype)


def router_z_loss(
    router_logits: Float[torch.Tensor, "*tokens X"], *, token_mask: Bool[torch.Tensor, "*tokens"] | None = None
) -> Float[torch.Tensor, ""]:
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
    logits = torch.where(real[..., None], widen(router_logits), 0)
    losses = row_logsumexps(logits) ** 2
    return reduced(losses, real, "mean").to(router_logits.dtype)
