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

RANKS_WAIT = 8.0
"""Seconds after which a rank is lost."""
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
        ranks, shard: how many call it together, and what they have a part of. The functions then have names.
    """

    rule: str
    name: str
    function: Function | str
    right: Function | str
    operation: str = "attention"
    arrays: str = "numpy"
    given: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    shard: str = "sequence"

    @property
    def title(self) -> str:
        return f"{self.rule} {self.name}"

    def make(self) -> Subject:
        return self.make_subject(self.function, self.title)

    def make_right(self) -> Subject:
        """The right one under the same declaration."""
        right = self.right
        return self.make_subject(right, right if isinstance(right, str) else f"{right.__module__}.{right.__qualname__}")

    def make_subject(self, function: Function | str, name: str) -> Subject:
        target = Target(
            function, self.operation, self.arrays, name=name, given=self.given, ranks=self.ranks, shard=self.shard
        )
        if not self.ranks:
            return target.make()
        from conformance.runner.ranks import put_on_ranks

        return target.make(put_on_ranks(target.function(), target, RANKS_WAIT))


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
