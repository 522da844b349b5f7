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
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{name} must be an array, got {type(array).__name__}")
    return tuple(array.shape)


def ranked(name: str, array: Any, axes: str) -> tuple[int, ...]:
    """The shape of an array that must have exactly the named axes, given as 'batch, heads, queries, width'."""
    shape = shape_of(name, array)
    if len(shape) != axes.count(",") + 1:
        raise ValueError(f"{name} must have shape [{axes}], got {list(shape)}")
    return shape


def floating(name: str, array: Any) -> str:
    shape_of(name, array)
    dtype = dtype_name(array)
    if dtype not in FLOATING:
        raise TypeError(f"{name} must have one of the dtypes {', '.join(FLOATING)}, got {dtype}")
    return dtype


def integer(name: str, array: Any) -> None:
    shape_of(name, array)
    if dtype_name(array) not in INTEGER:
        raise TypeError(f"{name} must have an integer dtype, got {dtype_name(array)}")


def boolean(name: str, array: Any, advice: str = "") -> None:
    shape_of(name, array)
    if dtype_name(array) not in BOOLEAN:
        raise TypeError(f"{name} must be boolean, got {dtype_name(array)}{advice}")


def same_dtype(**arrays: Any) -> str:
    """The one floating dtype that all of the arrays share."""
    names = {name: floating(name, array) for name, array in arrays.items()}
    if len(set(names.values())) > 1:
        raise TypeError(f"{', '.join(names)} must share one dtype, got {', '.join(names.values())}")
    return next(iter(names.values()))


def companion_dtype(name: str, array: Any, dtype: str) -> None:
    """Biases, sinks and norm weights have the main arrays' dtype, or the wider one in which those are computed."""
    allowed = dict.fromkeys((dtype, compute_dtype_name(dtype)))
    if floating(name, array) not in allowed:
        raise TypeError(f"{name} must be {' or '.join(allowed)} beside {dtype} inputs, got {dtype_name(array)}")


def pair_shape(name: str, array: Any, sizes: tuple[int | None, int | None, int, int]) -> None:
    """[Q, K] or [B or 1, H or 1, Q, K] (MASK-5). A batch or head count of None is not checked."""
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
    """Inputs of a model, before a framework sees them; None is left to the model."""
    for number, given in enumerate(inputs, 1):
        if given is not None:
            shape_of(f"input {number}", given)
            if dtype_name(given) not in FLOATING + INTEGER + BOOLEAN:
                raise TypeError(f"input {number} must hold numbers, got {dtype_name(given)}")


# --- numbers ----------------------------------------------------------------------------------------------------------


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{dtype_name(value)} array of shape {list(shape)}"


def structure(name: str, value: Any, kind: type) -> None:
    """Parameters of that kind, and nothing that only looks like them."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {described(value)}")


def plain(value: Any) -> Any:
    """A NumPy array of rank 0 as the number that it holds; anything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.shape == () else value


def real_number(name: str, value: Any) -> float | None:
    """The value of a real number. A framework's array of rank 0 will do too; it may be traced, is not read: None."""
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
    """The value of an integer. A framework's array of rank 0 will do too; it may be traced, is not read: None."""
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "shape", None) == () and dtype_name(value) in INTEGER:
        return None
    raise TypeError(f"{name} must be an integer, got {described(value)}")


def distance(name: str, value: Any) -> int | None:
    """The value of an integer that is not negative, or None for one that cannot be read."""
    number = whole_number(name, value)
    if number is not None and number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return in_range(name, number)


def in_range(name: str, number: int | None) -> int | None:
    """Positions are compared in 32 bits where a framework has no more; larger numbers would wrap around."""
    if number is not None and abs(number) > 2**30:
        raise ValueError(f"{name} must lie within 2**30 of 0, got {number}")
    return number


def natural(name: str, value: Any) -> int:
    """A count, which decides shapes and so must be a plain number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {described(value)}")
    if int(value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    return int(value)


def finite(name: str, value: Any, largest: float) -> None:
    """A number that can be read must be one that the dtype used inside can hold."""
    number = real_number(name, value)
    # Not math.isfinite, which torch.compile cannot trace on a symbolic number.
    if number is not None and not -largest <= number <= largest:
        raise ValueError(f"{name} must be finite, and no larger than {largest:.3g} beside these inputs, got {number}")


def epsilon(eps: Any) -> None:
    number = real_number("eps", eps)
    if number is not None and not SMALLEST_EPS <= number < math.inf:
        raise ValueError(f"eps must be finite and at least 2**-126, got {number}")


def dropout(keep: Any, rate: Any, shape: tuple[int, ...]) -> None:
    """A rate in [0, 1), and booleans of that shape, which only a rate of 0 can do without (ATT-11)."""
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
    """The gradient of a result has the result's shape and dtype."""
    if shape_of(name, array) != shape:
        raise ValueError(f"{name} must have shape {list(shape)} like the result, got {list(array.shape)}")
    if dtype_name(array) != dtype:
        raise TypeError(f"{name} must be {dtype} like the result, got {dtype_name(array)}")
