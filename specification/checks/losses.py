"""Checks on the arguments of losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from specification.checks.arguments import (
    described,
    floating,
    in_range,
    integer,
    one_of,
    real_number,
    shape_of,
    whole_number,
)
from specification.checks.operations import ids_within

__all__ = ["cross_entropy", "nll_loss", "targets_within"]


def nll_loss(
    log_probabilities: Any, targets: Any, ignore: Any, reduction: str, name: str = "log_probabilities"
) -> None:
    """Check the arguments of nll_loss but for the values of `targets` (LOSS-2).

    Args:
        log_probabilities: [..., V].
        targets: integers [...].
        ignore: a plain integer within 2**30 of 0, or None.
        reduction: "mean", "sum" or "none".
        name: what messages call log_probabilities.

    Raises:
        TypeError: for other dtypes, and for another kind of `ignore`.
        ValueError: for shapes that do not fit, and for another reduction.
    """
    shape = shape_of(name, log_probabilities)
    floating(name, log_probabilities)
    if len(shape) == 0 or shape[-1] == 0:
        raise ValueError(f"{name} must have shape [..., classes] with at least one class, got {list(shape)}")
    integer("targets", targets)
    if shape_of("targets", targets) != shape[:-1]:
        raise ValueError(
            f"targets must have shape {list(shape[:-1])} beside {name} of shape {list(shape)}, "
            f"got {list(targets.shape)}"
        )
    if ignore is not None and in_range("ignore", whole_number("ignore", ignore)) is None:
        raise TypeError(f"ignore must be a plain integer, got {described(ignore)}")
    one_of("reduction", reduction, ("mean", "sum", "none"))


def cross_entropy(logits: Any, targets: Any, label_smoothing: Any, ignore: Any, reduction: str) -> None:
    """Check the arguments of cross_entropy but for the values of `targets` (LOSS-1).

    Args:
        logits: [..., V].
        targets: integers [...].
        label_smoothing: a plain number in [0, 1).
        ignore: a plain integer within 2**30 of 0, or None.
        reduction: "mean", "sum" or "none".

    Raises:
        TypeError: for other dtypes, and for another kind of `label_smoothing` or `ignore`.
        ValueError: for shapes that do not fit, and for another smoothing or reduction.
    """
    nll_loss(logits, targets, ignore, reduction, name="logits")
    number = real_number("label_smoothing", label_smoothing)
    if number is None:
        raise TypeError(f"label_smoothing must be a plain number, got {described(label_smoothing)}")
    if not 0 <= number < 1:
        raise ValueError(f"label_smoothing must be at least 0 and below 1, got {number}")


def targets_within(targets: np.ndarray, classes: int, ignore: int | None) -> None:
    """Check the values of targets, where they can be read (LOSS-1, LOSS-2).

    Args:
        targets: integers.
        classes: how many there are.
        ignore: the target that does not count, or None.

    Raises:
        ValueError: for targets that are neither a class nor `ignore`.
    """
    ids_within(targets if ignore is None else targets[targets != ignore], classes, "targets")
