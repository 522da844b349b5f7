"""Checks on single arrays and numbers, and the one form of all messages.

`name` is what messages call a value. A number may also be a framework's array of rank 0. That may be traced, so it is
not read: where a function returns a number, it returns None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from specification.arrays import Array, is_array
from specification.dtypes import BOOLEAN, FLOATING, INTEGER, LARGEST, SMALLEST_EPS, compute_dtype_name, dtype_name

__all__ = ["cotangent", "dropout", "structure"]


def refuse(name: str, expected: str, got: object, error: type[Exception] = ValueError) -> NoReturn:
    """Raise an error that says what is wrong, what was expected, and what was given."""
    raise error(f"{name} must {expected}, got {got}")


def described(value: object) -> str:
    """Describe a value in a message: its type, and the dtype and shape of an array."""
    return f"{dtype_name(value)} array of shape {list(value.shape)}" if is_array(value) else type(value).__name__


# --- arrays -----------------------------------------------------------------------------------------------------------


def shape_of(name: str, array: object) -> tuple[int, ...]:
    """Read the shape of an array of any framework."""
    if not is_array(array):
        refuse(name, "be an array", type(array).__name__, TypeError)
    return tuple(array.shape)


KINDS = {
    "Float": (FLOATING, f"have one of the dtypes {', '.join(FLOATING)}"),
    "Integer": (INTEGER, "have an integer dtype"),
    "Bool": (BOOLEAN, "be boolean"),
}


def dtype_of(name: str, array: Array, kind: str, advice: str = "") -> str:
    """Name the dtype of an array, which must be of a kind."""
    dtype, (allowed, expected) = dtype_name(array), KINDS[kind]
    if dtype not in allowed:
        refuse(name, expected, f"{dtype}{advice}", TypeError)
    return dtype


def companion_dtype(name: str, array: Array, dtype: str) -> None:
    """Check an array beside those of a dtype: it has that one, or the wider one in which those are computed."""
    allowed = dict.fromkeys((dtype, compute_dtype_name(dtype)))
    if dtype_of(name, array, "Float") not in allowed:
        refuse(name, f"be {' or '.join(allowed)} beside {dtype} inputs", dtype_name(array), TypeError)


def arrays_of_numbers(inputs: tuple[Any, ...]) -> None:
    """Check the inputs of a model before a framework sees them; None is left to the model."""
    for number, given in enumerate(inputs, 1):
        if given is not None:
            shape_of(f"input {number}", given)
            if dtype_name(given) not in FLOATING + INTEGER + BOOLEAN:
                refuse(f"input {number}", "hold numbers", dtype_name(given), TypeError)


def values_within(name: str, values: np.ndarray | None, least: int, limit: int | float) -> None:
    """Check numbers of which each must be at least `least` and below `limit`, where they can be read."""
    if values is not None and values.size and not ((values >= least) & (values < limit)).all():
        refuse(name, f"lie in [{least}, {limit})", f"values from {values.min()} to {values.max()}")


def dropout(keep: Array | None, rate: object, shape: tuple[int, ...]) -> None:
    """Check the arguments of dropout on an array of a shape (ATT-11)."""
    check_rate(rate, keep)
    if keep is not None:
        own = shape_of("dropout_keep", keep)
        dtype_of("dropout_keep", keep, "Bool")
        if own != tuple(shape):
            refuse("dropout_keep", f"have shape {list(shape)}", list(own))


def check_rate(rate: object, keep: Array | None) -> None:
    """Check a rate of dropout, which must be 0 where nothing says what is kept (ATT-11)."""
    number = real_number("dropout_rate", rate)
    if number is not None and not 0 <= number < 1:
        refuse("dropout_rate", "be at least 0 and below 1", number)
    if keep is None and number is not None and number != 0:
        refuse("dropout_rate", "be 0 with no dropout_keep, which the caller draws", number)


def cotangent(array: Array, shape: tuple[int, ...], dtype: str, name: str = "cotangent") -> None:
    """Check the gradient of a result: it has the result's shape and dtype."""
    if shape_of(name, array) != tuple(shape):
        refuse(name, f"have shape {list(shape)} like the result", list(array.shape))
    if dtype_name(array) != dtype:
        refuse(name, f"be {dtype} like the result", dtype_name(array), TypeError)


# --- numbers and structures -------------------------------------------------------------------------------------------


def flag(name: str, value: object) -> None:
    """Check that an option is True or False."""
    if not isinstance(value, bool):
        refuse(name, "be True or False", repr(value), TypeError)


def one_of(name: str, value: object, choices: tuple[str, ...], error: type[Exception] = ValueError) -> None:
    """Check that a value is one of several."""
    if value not in choices:
        refuse(name, f"be one of {', '.join(map(repr, choices))}", repr(value), error)


def structure(name: str, value: object, kind: type) -> None:
    """Check that parameters are of a kind, and nothing that only looks like it."""
    if not isinstance(value, kind):
        refuse(name, f"be a {kind.__name__}", described(value), TypeError)


def plain(value: object) -> Any:
    """Return a NumPy array of rank 0 as the number that it holds, and anything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value


def real_number(name: str, value: object) -> float | None:
    """Read a real number."""
    value = plain(value)
    if isinstance(value, float):  # the common case, without the slower question of `Real`
        return float(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            refuse(name, "be finite", f"an integer of {len(str(value))} digits")
    if is_array(value) and value.shape == () and dtype_name(value) in FLOATING + INTEGER:
        return None
    refuse(name, "be a real number", described(value), TypeError)


def check_number(
    name: str, value: object, holds: Callable[[float], bool], expected: str, *, fixed: bool = False
) -> None:
    """Check that a number, where it can be read, is as expected; a fixed one may be no array."""
    number = real_number(name, value)
    if number is None and fixed:
        refuse(name, "be a plain number", described(value), TypeError)
    if number is not None and not holds(number):
        refuse(name, expected, number)


def finite(name: str, value: object, dtype: str, *, fixed: bool = False) -> None:
    """Check that a number, where it can be read, is one that a dtype can hold: NaN is not."""
    # Not math.isfinite, which torch.compile cannot trace on a symbolic number.
    largest = LARGEST[dtype]
    check_number(name, value, lambda number: -largest <= number <= largest, f"be finite in {dtype}", fixed=fixed)


def epsilon(eps: object) -> None:
    """Check what a norm adds before it divides."""
    check_number("eps", eps, lambda number: SMALLEST_EPS <= number < math.inf, "be finite and at least 2**-126")


def whole_number(name: str, value: object) -> int | None:
    """Read an integer."""
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if is_array(value) and value.shape == () and dtype_name(value) in INTEGER:
        return None
    refuse(name, "be an integer", described(value), TypeError)


def position(name: str, value: object) -> int | None:
    """Read an integer, which must lie within 2**30 of 0."""
    number = whole_number(name, value)
    # Positions are compared in 32 bits where a framework has no more: larger numbers would wrap around.
    if number is not None and abs(number) > 2**30:
        refuse(name, "lie within 2**30 of 0", number)
    return number


def distance(name: str, value: object) -> int | None:
    """Read a position that must not be negative."""
    number = position(name, value)
    if number is not None and number < 0:
        refuse(name, "not be negative", number)
    return number


def natural(name: str, value: object, least: int = 0) -> int:
    """Read a count, which decides shapes and so must be a plain integer."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        refuse(name, "be an integer", described(value), TypeError)
    if int(value) < least:
        refuse(name, f"be at least {least}" if least else "not be negative", value)
    return int(value)
