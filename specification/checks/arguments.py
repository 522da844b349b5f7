"""Checks on single arrays and numbers. Every message shows what came and what was expected."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from specification.dtypes import BOOLEAN, FLOATING, INTEGER, SMALLEST_EPS, compute_dtype_name, dtype_name

__all__ = ["cotangent", "dropout", "structure"]

# --- arrays -----------------------------------------------------------------------------------------------------------


def shape_of(name: str, array: Any) -> tuple[int, ...]:
    """Read the shape of an array.

    Args:
        name: what messages call it.
        array: of any framework.

    Raises:
        TypeError: for what is no array.
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{name} must be an array, got {type(array).__name__}")
    return tuple(array.shape)


def ranked(name: str, array: Any, axes: str) -> tuple[int, ...]:
    """Read the shape of an array that must have certain axes.

    Args:
        name: what messages call it.
        array: of any framework.
        axes: their names, as in "batch, heads, queries, width".

    Raises:
        TypeError: for what is no array.
        ValueError: for another number of axes.
    """
    shape = shape_of(name, array)
    if len(shape) != axes.count(",") + 1:
        raise ValueError(f"{name} must have shape [{axes}], got {list(shape)}")
    return shape


def floating(name: str, array: Any) -> str:
    """Name the dtype of an array that must be floating.

    Args:
        name: what messages call it.
        array: of any framework.

    Raises:
        TypeError: for what is no array, and for another dtype.
    """
    shape_of(name, array)
    dtype = dtype_name(array)
    if dtype not in FLOATING:
        raise TypeError(f"{name} must have one of the dtypes {', '.join(FLOATING)}, got {dtype}")
    return dtype


def integer(name: str, array: Any) -> None:
    """Check that an array has an integer dtype.

    Args:
        name: what messages call it.
        array: of any framework.

    Raises:
        TypeError: for what is no array, and for another dtype.
    """
    shape_of(name, array)
    if dtype_name(array) not in INTEGER:
        raise TypeError(f"{name} must have an integer dtype, got {dtype_name(array)}")


def boolean(name: str, array: Any, advice: str = "") -> None:
    """Check that an array is boolean.

    Args:
        name: what messages call it.
        array: of any framework.
        advice: added to the message.

    Raises:
        TypeError: for what is no array, and for another dtype.
    """
    shape_of(name, array)
    if dtype_name(array) not in BOOLEAN:
        raise TypeError(f"{name} must be boolean, got {dtype_name(array)}{advice}")


def same_dtype(**arrays: Any) -> str:
    """Name the one floating dtype that all arrays must share.

    Args:
        **arrays: by the names that messages call them.

    Raises:
        TypeError: for other dtypes, and for more than one.
    """
    names = {name: floating(name, array) for name, array in arrays.items()}
    if len(set(names.values())) > 1:
        raise TypeError(f"{', '.join(names)} must share one dtype, got {', '.join(names.values())}")
    return next(iter(names.values()))


def companion_dtype(name: str, array: Any, dtype: str) -> None:
    """Check the dtype of biases, sinks and norm weights.

    It is that of the main arrays, or the wider one in which those are computed.

    Args:
        name: what messages call it.
        array: of any framework.
        dtype: that of the main arrays.

    Raises:
        TypeError: for another dtype.
    """
    allowed = dict.fromkeys((dtype, compute_dtype_name(dtype)))
    if floating(name, array) not in allowed:
        raise TypeError(f"{name} must be {' or '.join(allowed)} beside {dtype} inputs, got {dtype_name(array)}")


def pair_shape(name: str, array: Any, sizes: tuple[int | None, int | None, int, int]) -> None:
    """Check the shape of an array for pairs of queries and keys (MASK-5).

    Args:
        name: what messages call it.
        array: [Q, K] or [B or 1, H or 1, Q, K].
        sizes: (B, H, Q, K). A batch or head count of None is not checked.

    Raises:
        TypeError: for what is no array.
        ValueError: for another shape.
    """
    shape = shape_of(name, array)
    batch, heads, queries, keys = sizes
    if len(shape) not in (2, 4):
        raise ValueError(
            f"{name} must have shape [queries, keys] or [batch or 1, heads or 1, queries, keys], got {list(shape)}; "
            "for a [batch, keys] padding mask use KeyPadding, for one length a sequence use KeyLengths"
        )
    outer = shape[:-2] or (1, 1)
    fits = all(size in (1, full) or full is None for size, full in zip(outer, (batch, heads), strict=True))
    if not fits or shape[-2:] != (queries, keys):
        expected = [f"{'any' if full is None else full} or 1" for full in (batch, heads)]
        raise ValueError(
            f"{name} of shape {list(shape)} does not fit [{queries}, {keys}] or "
            f"[{expected[0]}, {expected[1]}, {queries}, {keys}]; for a [batch, keys] padding mask use KeyPadding"
        )


def arrays_of_numbers(inputs: tuple[Any, ...]) -> None:
    """Check the inputs of a model before a framework sees them.

    Args:
        inputs: arrays; None is left to the model.

    Raises:
        TypeError: for what is no array, and for arrays of anything but numbers and truth values.
    """
    for number, given in enumerate(inputs, 1):
        if given is not None:
            shape_of(f"input {number}", given)
            if dtype_name(given) not in FLOATING + INTEGER + BOOLEAN:
                raise TypeError(f"input {number} must hold numbers, got {dtype_name(given)}")


# --- numbers ----------------------------------------------------------------------------------------------------------


def flag(name: str, value: Any) -> None:
    """Check that an option is True or False.

    Args:
        name: what messages call it.
        value: the option.

    Raises:
        TypeError: for anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that a value is one of several.

    Args:
        name: what messages call it.
        value: what was given.
        choices: what it may be.

    Raises:
        ValueError: for another value.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def described(value: Any) -> str:
    """Describe a value in a message: its type, and the dtype and shape of an array."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{dtype_name(value)} array of shape {list(shape)}"


def structure(name: str, value: Any, kind: type) -> None:
    """Check that parameters are of a kind, and nothing that only looks like it.

    Args:
        name: what messages call them.
        value: what was given.
        kind: the NamedTuple that they must be.

    Raises:
        TypeError: for anything else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {described(value)}")


def plain(value: Any) -> Any:
    """Return a NumPy array of rank 0 as the number that it holds, and anything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value


def real_number(name: str, value: Any) -> float | None:
    """Read a real number.

    Args:
        name: what messages call it.
        value: a number, or a framework's array of rank 0.

    Returns:
        The number; None for an array, which may be traced and is not read.

    Raises:
        TypeError: for anything else.
        ValueError: for an integer that no float can hold.
    """
    value = plain(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{name} must be finite, got an integer of {len(str(value))} digits") from error
    if getattr(value, "shape", None) == () and dtype_name(value) in FLOATING + INTEGER:
        return None
    raise TypeError(f"{name} must be a real number, got {described(value)}")


def whole_number(name: str, value: Any) -> int | None:
    """Read an integer.

    Args:
        name: what messages call it.
        value: an integer, or a framework's array of rank 0.

    Returns:
        The integer; None for an array, which may be traced and is not read.

    Raises:
        TypeError: for anything else.
    """
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "shape", None) == () and dtype_name(value) in INTEGER:
        return None
    raise TypeError(f"{name} must be an integer, got {described(value)}")


def distance(name: str, value: Any) -> int | None:
    """Read an integer that must not be negative.

    Args:
        name: what messages call it.
        value: an integer, or a framework's array of rank 0.

    Returns:
        The integer, or None for one that cannot be read.

    Raises:
        TypeError: for anything else.
        ValueError: for a negative one, and for one beyond 2**30.
    """
    number = whole_number(name, value)
    if number is not None and number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return in_range(name, number)


def in_range(name: str, number: int | None) -> int | None:
    """Check that an integer lies within 2**30 of 0.

    Positions are compared in 32 bits where a framework has no more; larger numbers would wrap around.

    Args:
        name: what messages call it.
        number: the integer, or None, which is not checked.

    Returns:
        The same.

    Raises:
        ValueError: for a larger one.
    """
    if number is not None and abs(number) > 2**30:
        raise ValueError(f"{name} must lie within 2**30 of 0, got {number}")
    return number


def natural(name: str, value: Any) -> int:
    """Read a count, which decides shapes and so must be a plain number.

    Args:
        name: what messages call it.
        value: an integer.

    Raises:
        TypeError: for anything else.
        ValueError: for a negative one.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {described(value)}")
    if int(value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    return int(value)


def finite(name: str, value: Any, largest: float) -> None:
    """Check that a number, where it can be read, is one that the dtype used inside can hold.

    Args:
        name: what messages call it.
        value: a number, or a framework's array of rank 0.
        largest: the largest number of that dtype.

    Raises:
        TypeError: for what is no number.
        ValueError: for NaN, infinities, and larger numbers.
    """
    number = real_number(name, value)
    # Not math.isfinite, which torch.compile cannot trace on a symbolic number.
    if number is not None and not -largest <= number <= largest:
        raise ValueError(f"{name} must be finite, and no larger than {largest:.3g} beside these inputs, got {number}")


def epsilon(eps: Any) -> None:
    """Check what a norm adds before it divides.

    Args:
        eps: a number, or a framework's array of rank 0.

    Raises:
        TypeError: for what is no number.
        ValueError: for one that is not finite, or below 2**-126.
    """
    number = real_number("eps", eps)
    if number is not None and not SMALLEST_EPS <= number < math.inf:
        raise ValueError(f"eps must be finite and at least 2**-126, got {number}")


def dropout(keep: Any, rate: Any, shape: tuple[int, ...]) -> None:
    """Check the arguments of dropout (ATT-11).

    Args:
        keep: booleans of that shape, or None, which only a rate of 0 can do with.
        rate: in [0, 1).
        shape: of the array on which dropout acts.

    Raises:
        TypeError: for another dtype, and for a rate that is no number.
        ValueError: for another shape or rate.
    """
    number = real_number("dropout_rate", rate)
    if number is not None and not 0 <= number < 1:
        raise ValueError(f"dropout_rate must be at least 0 and below 1, got {number}")
    if keep is None:
        if number is not None and number != 0:
            raise ValueError(f"dropout_rate is {rate} but no dropout_keep was given; the caller draws it")
        return
    boolean("dropout_keep", keep)
    if shape_of("dropout_keep", keep) != shape:
        raise ValueError(f"dropout_keep must have shape {list(shape)}, got {list(keep.shape)}")


def cotangent(array: Any, shape: tuple[int, ...], dtype: str, name: str = "cotangent") -> None:
    """Check the gradient of a result: it has the result's shape and dtype.

    Args:
        array: the gradient.
        shape: the result's.
        dtype: the result's.
        name: what messages call it.

    Raises:
        TypeError: for another dtype.
        ValueError: for another shape.
    """
    if shape_of(name, array) != shape:
        raise ValueError(f"{name} must have shape {list(shape)} like the result, got {list(array.shape)}")
    if dtype_name(array) != dtype:
        raise TypeError(f"{name} must be {dtype} like the result, got {dtype_name(array)}")
