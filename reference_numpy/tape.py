"""A tape: gradients of compositions, such as blocks and whole models, out of those of the operations in them.

`vjp` calls a composition, and notes each call of an `operation` in it on a tape. Then it reads the tape from its end:
what a call's result has received goes through the operation's gradient to the call's arguments.

    n = norm(x), y = x + f(n)       x_bar = y_bar + norm_vjp(f_vjp(y_bar))

Here two calls have x as an argument, and it receives a gradient from both. Operations have their gradients by hand, or
are compositions themselves, as attention with its projections is. Arrays and structures of parameters are told apart by
identity, which is safe because the tape keeps them alive.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from jaxtyping import Float

from reference_numpy.dtypes import widen
from specification import checks
from specification.dtypes import FLOATING, dtype_name
from specification.parameters import mapped, rebuild

F = TypeVar("F", bound=Callable[..., Any])


class Call(NamedTuple):
    """One call of an operation, and its result."""

    function: Callable[..., Any]
    given: inspect.BoundArguments
    result: Any


class Gradient(NamedTuple):
    """Of an operation: the arguments that have one, and the function for these by hand; None for a composition."""

    arguments: tuple[str, ...]
    by_hand: Callable[..., Any] | None = None


TAPE: ContextVar[list[Call] | None] = ContextVar("TAPE", default=None)
GRADIENTS: dict[str, Gradient] = {}
"""By the name of the operation."""


def operation(function: F) -> F:
    """Decorate a function that a tape notes as one call, without the calls in it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        tape, result = TAPE.get(), call_with(None, function, *arguments, **keywords)
        if tape is not None:
            tape.append(Call(function, signature.bind(*arguments, **keywords), result))
        return result

    return cast(F, call)


def call_with(tape: list[Call] | None, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The function's result, with its calls of operations noted on that tape, or on none."""
    token = TAPE.set(tape)
    try:
        return function(*arguments, **keywords)
    finally:
        TAPE.reset(token)


def gradient_of(*arguments: str) -> Callable[[F], F]:
    """Decorate `<operation>_vjp`, an operation's gradient by hand, which returns those of these arguments."""

    def decorate(by_hand: F) -> F:
        GRADIENTS[by_hand.__name__.removesuffix("_vjp")] = Gradient(arguments, by_hand)
        return by_hand

    return decorate


def vjp(function: Callable[..., Any], inputs: dict[str, Any], cotangent: np.ndarray, **options: Any) -> dict[str, Any]:
    """Compute the vector-Jacobian product of a composition: what its inputs receive from the cotangent of its result.

    Args:
        function: The composition, called as function(**inputs, **options).
        inputs: Arrays, and structures of arrays, by name.
        cotangent: Gradient with respect to the result, in its shape and dtype.
        **options: Arguments without a gradient.

    Returns:
        Gradients by name, in the structures of the inputs: 0 for an array on which the result does not depend, None
        for what is no array of floating-point numbers.

    Raises:
        TypeError, ValueError: As in the composition, and for a cotangent in another shape or dtype than its result.
    """
    tape: list[Call] = []
    seen: set[int] = set()
    inputs = {name: separate_places(value, seen) for name, value in inputs.items()}
    with np.errstate(all="ignore"):
        result = call_with(tape, function, **inputs, **options)
        checks.cotangent(cotangent, result.shape, dtype_name(result))
        received = {id(result): cotangent}
        for call in reversed(tape):
            if id(call.result) in received:
                gradients = pull_back(call, received.pop(id(call.result)))
                names = GRADIENTS[call.function.__name__].arguments
                for name, gradient in zip(names, gradients if len(names) > 1 else [gradients], strict=True):
                    if gradient is not None:
                        key = id(call.given.arguments[name])
                        received[key] = mapped(accumulate, received[key], gradient) if key in received else gradient
    return {name: collect(value, received) for name, value in inputs.items()}


def pull_back(call: Call, cotangent: np.ndarray) -> Any:
    """Gradients of the call's arguments: one, or a tuple where there are several."""
    names, by_hand = GRADIENTS[call.function.__name__]
    if by_hand is not None:
        return by_hand(*call.given.args, cotangent=cotangent, **call.given.kwargs)
    inputs = {name: call.given.arguments.get(name) for name in names}
    options = {name: value for name, value in call.given.arguments.items() if name not in names}
    return tuple(vjp(call.function, inputs, cotangent, **options).values())


def accumulate(x: Float[np.ndarray, "..."], y: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The sum of two gradients of one array, rounded to its dtype."""
    return (widen(x) + widen(y)).astype(x.dtype)


def separate_places(value: Any, seen: set[int]) -> Any:
    """The value, with a view in place of an array that is at a second place: each place has a gradient of its own."""
    if isinstance(value, list | tuple):
        parts = [separate_places(part, seen) for part in value]
        return value if all(map(operator.is_, parts, value)) else rebuild(value, parts)
    again = isinstance(value, np.ndarray) and id(value) in seen
    seen.add(id(value))
    return value.view() if again else value


def collect(value: Any, received: dict[int, Any]) -> Any:
    """What the value, or each part of it, has received."""
    if id(value) in received:
        return received[id(value)]
    if isinstance(value, list | tuple):
        return rebuild(value, [collect(part, received) for part in value])
    return np.zeros_like(value) if isinstance(value, np.ndarray) and dtype_name(value) in FLOATING else None
