"""What is done with the gradients of a step: clipping, the schedule of the learning rate, Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training.lockstep.bounds import Adam


@dataclass(frozen=True)
class Recipe:
    """Hashable and free of arrays.

    schedule: the name of a function of `schedules.py`, and its keyword arguments. rate: what that is multiplied by.
    clip: the largest norm of all gradients together; None for no clipping. adam: keyword arguments of `adam_step`.
    """

    schedule: str
    schedule_options: tuple[tuple[str, Any], ...]
    rate: float = 1.0
    clip: float | None = None
    adam: tuple[tuple[str, Any], ...] = ()

    def learning_rate(self, step: int, package: Any) -> Any:
        """The rate of a step, counted from 0, by the schedule of a package."""
        return self.rate * getattr(package, self.schedule)(step, **dict(self.schedule_options))

    def adam_at(self, step: int, package: Any) -> Adam:
        """The numbers of a step of Adam."""
        return Adam(float(self.learning_rate(step, package)), **dict(self.adam))
