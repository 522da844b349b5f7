"""From what a caller names to the subject that is judged, in this process or in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.cases.facts import operations
from conformance.cases.signatures import declaration_of
from conformance.subjects.callables import CallableSubject, load
from conformance.subjects.frameworks import FRAMEWORKS
from conformance.subjects.subject import IMPLEMENTATIONS, Subject


@dataclass(frozen=True)
class Target:
    """A subject to be made.

    subject: a callable, `package.module:callable`, `path/to/file.py:callable`, or one of the three implementations by
    name. arrays: None for a guess, which the runner makes. given: what is said of it; see `declaration.declare`. Its
    `vjp` may be named by a string like the subject. guessed: what the guess of `arrays` goes by; empty for no guess.
    """

    subject: str | Callable[..., Any]
    operation: str
    arrays: str | None = "numpy"
    device: str = "cpu"
    name: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    guessed: str = ""

    def make(self, function: Callable[..., Any] | None = None) -> Subject:
        """ValueError says what is wrong with the target, or with what is said of it. function: the subject, loaded."""
        if isinstance(self.subject, str) and self.subject in IMPLEMENTATIONS:
            return IMPLEMENTATIONS[self.subject](device=self.device)
        if self.arrays not in FRAMEWORKS:
            raise ValueError(f"arrays must be one of {', '.join(FRAMEWORKS)}, got {self.arrays!r}")
        function = self.function() if function is None else function
        framework: Any = FRAMEWORKS[self.arrays](self.device)
        if (self.arrays, self.device) == ("torch", "cuda") and not framework.torch.cuda.is_available():
            raise ValueError("device: PyTorch sees no GPU")
        declaration = declaration_of(function, framework.name != "numpy", **self.given)
        vjp = load(declaration.vjp) if isinstance(declaration.vjp, str) else declaration.vjp
        declaration = replace(declaration, vjp=vjp, compiled=framework.name == "jax")
        return CallableSubject(function, self.operation, framework, declaration, self.title)

    def function(self) -> Callable[..., Any]:
        """Return the subject, loaded; ValueError says why there is none."""
        if self.operation not in operations():
            raise ValueError(f"operation must be one of {', '.join(operations())}, got {self.operation!r}")
        function = load(self.subject) if isinstance(self.subject, str) else self.subject
        if not callable(function):
            raise ValueError(f"the subject is no callable but {type(function).__name__}")
        return function

    @property
    def title(self) -> str:
        if self.name is not None or isinstance(self.subject, str):
            return self.name or str(self.subject)
        return getattr(self.subject, "__qualname__", repr(self.subject))
