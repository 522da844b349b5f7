"""What is done with the gradients of a step: clipping, the schedule of the learning rate, Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.lockstep.bounds import Adam
from training.packages import Package


@dataclass(frozen=True)
class Recipe:
    """A step after its gradients.

    rate: the learning rate of a step, counted from 0, by a package's schedule.
    clip: the largest norm of all gradients together; None for no clipping. adam: keyword arguments of `adam_step`.
    """

    rate: Callable[[Package, int], Any]
    clip: float | None = None
    adam: tuple[tuple[str, Any], ...] = ()

    def adam_at(self, step: int, package: Package) -> Adam:
        """The numbers of a step of Adam."""
        return Adam(float(self.rate(package, step)), **dict(self.adam))
