"""What a planted fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.subjects.targets import Target


@dataclass(frozen=True)
class Fault:
    """A wrong implementation of one operation.

    rule: the one that must notice. function: takes the operation's own arguments. right: what it was made from, which
    conforms. arrays: their framework. given: what is said of both, as in `check`.
    """

    rule: str
    name: str
    operation: str
    function: Callable[..., Any]
    right: Callable[..., Any]
    arrays: str = "numpy"
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.rule} {self.name}"

    def target(self) -> Target:
        """The fault as a subject."""
        return Target(self.function, self.operation, self.arrays, name=self.title, given=self.given)

    def right_target(self) -> Target:
        """The right one under the same declaration."""
        name = f"{self.right.__module__}.{self.right.__qualname__}"
        return Target(self.right, self.operation, self.arrays, name=name, given=self.given)
