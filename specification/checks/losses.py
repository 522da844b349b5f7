"""Checks on the arguments of losses."""

from __future__ import annotations

import numpy as np

from specification.arrays import Array
from specification.checks.arguments import check_number, described, natural, one_of, position, refuse, values_within
from specification.checks.shapes import Bool, Float, Integer, check_shapes

__all__ = ["cross_entropy", "load_balancing_loss", "nll_loss", "router_z_loss", "targets_within"]


@check_shapes
def nll_loss(
    log_probabilities: Float[Array, "*rows V"], targets: Integer[Array, "*rows"], ignore: int | None, reduction: str
) -> None:
    """Check the arguments of nll_loss but for the values of `targets` (LOSS-2)."""
    check_loss("log_probabilities", log_probabilities, ignore, reduction)


@check_shapes
def cross_entropy(
    logits: Float[Array, "*rows V"],
    targets: Integer[Array, "*rows"],
    label_smoothing: float,
    ignore: int | None,
    reduction: str,
) -> None:
    """Check the arguments of cross_entropy but for the values of `targets` (LOSS-1)."""
    check_loss("logits", logits, ignore, reduction)
    check_number("label_smoothing", label_smoothing, lambda s: 0 <= s < 1, "be at least 0 and below 1", fixed=True)


def check_loss(name: str, scores: Array, ignore: int | None, reduction: str) -> None:
    """Check what both losses have."""
    if scores.shape[-1] == 0:
        refuse(name, "have at least one class", list(scores.shape))
    if ignore is not None and position("ignore", ignore) is None:
        refuse("ignore", "be a plain integer", described(ignore), TypeError)
    one_of("reduction", reduction, ("mean", "sum", "none"))


def targets_within(targets: np.ndarray, classes: int, ignore: int | None) -> None:
    """Check that targets, where they can be read, are a class or `ignore` (LOSS-1, LOSS-2)."""
    values_within("targets", targets if ignore is None else targets[targets != ignore], 0, classes)


@check_shapes
def load_balancing_loss(
    router_logits: Float[Array, "*tokens X"], chosen: int, token_mask: Bool[Array, "*tokens"] | None
) -> None:
    """Check the arguments of load_balancing_loss (MOE-6)."""
    check_chosen(chosen, router_logits.shape[-1])


@check_shapes
def router_z_loss(router_logits: Float[Array, "*tokens X"], token_mask: Bool[Array, "*tokens"] | None) -> None:
    """Check the arguments of router_z_loss (MOE-6)."""
    if router_logits.shape[-1] == 0:
        refuse("router_logits", "have at least one expert", list(router_logits.shape))


def check_chosen(chosen: int, experts: int) -> None:
    """Check the number of experts that are chosen for a token (MOE-2)."""
    if natural("chosen", chosen, least=1) > experts:
        refuse("chosen", f"be at most {experts}, the number of experts", chosen)
