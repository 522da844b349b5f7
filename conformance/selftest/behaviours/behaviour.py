"""What a planted behaviour is, and how one is made from a right function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import reference_numpy
from conformance.cases.declaration import declare
from conformance.subjects.callables import Target
from conformance.subjects.subject import Subject

Function = Callable[..., Any]
Arguments = dict[str, Any]
"""Of one call, by the names of the function's parameters."""


@dataclass(frozen=True)
class Behaviour:
    """A bad implementation of one operation.

    Attributes:
        rule: the one that must notice.
        name: what it does, in a few words.
        function: takes the operation's own arguments.
        right: what it was made from, which conforms.
        operation: that it implements.
        arrays: their framework.
        given: what is said of both, as in `check`.
    """

    rule: str
    name: str
    function: Function
    right: Function
    operation: str = "attention"
    arrays: str = "numpy"
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.rule} {self.name}"

    def make(self) -> Subject:
        return Target(self.function, self.operation, self.arrays, name=self.title, given=self.given).make()

    def make_right(self) -> Subject:
        """The right one under the same declaration."""
        name = f"{self.right.__module__}.{self.right.__qualname__}"
        return Target(self.right, self.operation, self.arrays, name=name, given=self.given).make()


def wrap(right: Function, answer: Callable[[Arguments], Any]) -> Function:
    """A function with the parameters of `right` whose results are `answer(arguments)`."""
    signature = inspect.signature(right)

    @wraps(right)
    def function(*positional: Any, **keywords: Any) -> Any:
        bound = signature.bind(*positional, **keywords)
        bound.apply_defaults()
        return answer(bound.arguments)

    return function


def change_arguments(right: Function, change: Callable[[Arguments], None]) -> Function:
    """`right`, before which `change` puts others in place of some arguments, or changes them where they lie."""

    def answer(arguments: Arguments) -> Any:
        change(arguments)
        return right(**arguments)

    return wrap(right, answer)


def change_result(right: Function, change: Callable[[Arguments, Any], Any]) -> Function:
    """`right`, whose result `change(arguments, result)` replaces."""
    return wrap(right, lambda arguments: change(arguments, right(**arguments)))


def differentiate(right: Function, vjp: Function) -> Function:
    """`right`, whose gradients `vjp` gives."""
    return declare(vjp=vjp)(change_arguments(right, lambda arguments: None))


# --- behaviours of the definition -------------------------------------------------------------------------------------

right_gradients = differentiate(reference_numpy.attention, reference_numpy.attention_vjp)


def misuse_arguments(
    rule: str, name: str, change: Callable[[Arguments], None], operation: str = "attention", **given: Any
) -> Behaviour:
    """Before the definition answers, `change` changes its arguments."""
    right = getattr(reference_numpy, operation)
    return Behaviour(rule, name, change_arguments(right, change), right, operation, given=given)


def spoil_result(
    rule: str, name: str, change: Callable[[Arguments, Any], Any], operation: str = "attention"
) -> Behaviour:
    """`change` replaces the definition's result."""
    right = getattr(reference_numpy, operation)
    return Behaviour(rule, name, change_result(right, change), right, operation)


def spoil_gradients(rule: str, name: str, change: Callable[[Arguments, Any], Any]) -> Behaviour:
    """`change` replaces the gradients of attention."""
    vjp = change_result(reference_numpy.attention_vjp, change)
    return Behaviour(rule, name, differentiate(reference_numpy.attention, vjp), right_gradients)
