"""Checks on the arguments of optimizers, schedules and initialisers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specification.checks.arguments import (
    companion_dtype,
    described,
    distance,
    epsilon,
    flag,
    floating,
    natural,
    ranked,
    real_number,
    shape_of,
    structure,
)
from specification.dtypes import compute_dtype_name, dtype_name
from specification.optimizers import AdamState, SgdState
from specification.parameters import leaves

__all__ = [
    "adam",
    "clip",
    "embedding_numbers",
    "linear_numbers",
    "not_negative",
    "schedule",
    "sgd",
    "trained",
    "uniform_numbers",
]

# --- trees ------------------------------------------------------------------------------------------------------------


def trained(name: str, tree: Any) -> None:
    """Check a tree of parameters or gradients: floating arrays, at least one.

    Args:
        name: what messages call it.
        tree: any nesting of NamedTuples, dicts, lists, tuples and arrays.

    Raises:
        TypeError: for what is no array, and for other dtypes.
        ValueError: for a tree without arrays.
    """
    arrays = leaves(tree, name)
    if not arrays:
        raise ValueError(f"{name} must hold at least one array, got none")
    for path, array in arrays.items():
        floating(path, array)


def alike(name: str, tree: Any, parameters: Any) -> None:
    """Check that a tree has an array of the same shape wherever the parameters have one, and no other.

    Args:
        name: what messages call it.
        tree: the tree.
        parameters: a tree that was checked.

    Raises:
        TypeError: for what is no array.
        ValueError: for another structure or shape.
    """
    own, expected = leaves(tree, name), leaves(parameters, name)
    if own.keys() != expected.keys():
        path = next(path for path in (*expected, *own) if (path in own) != (path in expected))
        more, fewer = (name, "parameters") if path in own else ("parameters", name)
        place = path.removeprefix(name) or "the root"
        raise ValueError(f"{name} must have the structure of parameters: {more} has an array at {place}, {fewer} none")
    for path, array in own.items():
        if shape_of(path, array) != tuple(expected[path].shape):
            shape = list(expected[path].shape)
            raise ValueError(f"{path} must have shape {shape} like the parameter, got {list(array.shape)}")


def gradients_of(parameters: Any, gradients: Any) -> None:
    """Check parameters and their gradients.

    Args:
        parameters: a tree of floating arrays.
        gradients: the same, each array in its parameter's dtype or in the compute dtype.

    Raises:
        TypeError: for other dtypes.
        ValueError: for structures or shapes that do not fit.
    """
    trained("parameters", parameters)
    alike("gradients", gradients, parameters)
    expected = leaves(parameters, "gradients")
    for path, array in leaves(gradients, "gradients").items():
        companion_dtype(path, array, dtype_name(expected[path]))


def remembered(name: str, tree: Any, parameters: Any) -> None:
    """Check a part of an optimizer's state: like the parameters, in the compute dtype.

    Args:
        name: what messages call it.
        tree: the part.
        parameters: a tree that was checked.

    Raises:
        TypeError: for other dtypes.
        ValueError: for structures or shapes that do not fit.
    """
    alike(name, tree, parameters)
    expected = leaves(parameters, name)
    for path, array in leaves(tree, name).items():
        dtype = dtype_name(expected[path])
        if floating(path, array) != compute_dtype_name(dtype):
            wide = compute_dtype_name(dtype)
            raise TypeError(f"{path} must be {wide} beside {dtype} parameters, got {dtype_name(array)}")


# --- numbers ----------------------------------------------------------------------------------------------------------


def plain_number(name: str, value: Any) -> float:
    """Read a number that decides how a step is taken, and so may not be traced.

    Args:
        name: what messages call it.
        value: a number.

    Raises:
        TypeError: for anything else.
    """
    number = real_number(name, value)
    if number is None:
        raise TypeError(f"{name} must be a number, got {described(value)}")
    return number


def not_negative(name: str, value: Any, *, plain: bool = False) -> None:
    """Check that a number is finite and at least 0, where it can be read.

    Args:
        name: what messages call it.
        value: a number, or a framework's array of rank 0.
        plain: whether it must be a number.

    Raises:
        TypeError: for what is no number.
        ValueError: for NaN, infinity, and negative numbers.
    """
    number = plain_number(name, value) if plain else real_number(name, value)
    if number is not None and not 0 <= number < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {number}")


def decay(name: str, value: Any) -> None:
    """Check the factor of a moving average.

    Args:
        name: what messages call it.
        value: in [0, 1).

    Raises:
        TypeError: for what is no number.
        ValueError: for a number outside [0, 1).
    """
    number = plain_number(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {number}")


# --- steps ------------------------------------------------------------------------------------------------------------


def adam(
    parameters: Any,
    gradients: Any,
    state: Any,
    *,
    learning_rate: Any,
    beta_1: Any,
    beta_2: Any,
    eps: Any,
    weight_decay: Any,
    decoupled: Any,
) -> None:
    """Check the arguments of adam_step (OPT-1).

    Args:
        parameters: a tree of floating arrays.
        gradients: the same, each array in its parameter's dtype or in the compute dtype.
        state: an `AdamState`, with mean and square in the compute dtype.
        learning_rate: finite, at least 0.
        beta_1: in [0, 1).
        beta_2: in [0, 1).
        eps: finite and at least 2**-126.
        weight_decay: finite, at least 0.
        decoupled: True or False.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for structures or shapes that do not fit, and for numbers out of range.
    """
    gradients_of(parameters, gradients)
    structure("state", state, AdamState)
    distance("state.step", state.step)
    remembered("state.mean", state.mean, parameters)
    remembered("state.square", state.square, parameters)
    not_negative("learning_rate", learning_rate)
    decay("beta_1", beta_1)
    decay("beta_2", beta_2)
    epsilon(eps)
    not_negative("weight_decay", weight_decay, plain=True)
    flag("decoupled", decoupled)


def sgd(
    parameters: Any, gradients: Any, state: Any, *, learning_rate: Any, momentum: Any, nesterov: Any, weight_decay: Any
) -> None:
    """Check the arguments of sgd_step (OPT-2).

    Args:
        parameters: a tree of floating arrays.
        gradients: the same, each array in its parameter's dtype or in the compute dtype.
        state: an `SgdState`, with the velocity in the compute dtype.
        learning_rate: finite, at least 0.
        momentum: in [0, 1).
        nesterov: True or False; True needs a momentum above 0.
        weight_decay: finite, at least 0.

    Raises:
        TypeError: for other structures or dtypes.
        ValueError: for structures or shapes that do not fit, and for numbers out of range.
    """
    gradients_of(parameters, gradients)
    structure("state", state, SgdState)
    remembered("state.velocity", state.velocity, parameters)
    not_negative("learning_rate", learning_rate)
    decay("momentum", momentum)
    flag("nesterov", nesterov)
    not_negative("weight_decay", weight_decay, plain=True)
    if nesterov and momentum == 0:
        raise ValueError("nesterov needs a momentum above 0, got 0")


def clip(gradients: Any, limit: Any) -> None:
    """Check the arguments of clip_by_global_norm (OPT-3).

    Args:
        gradients: a tree of floating arrays.
        limit: above 0; infinity for no limit.

    Raises:
        TypeError: for other dtypes, and for what is no number.
        ValueError: for a tree without arrays, and for another limit.
    """
    trained("gradients", gradients)
    number = real_number("limit", limit)
    if number is not None and not number > 0:
        raise ValueError(f"limit must be above 0, got {number}")


# --- schedules --------------------------------------------------------------------------------------------------------


def schedule(step: Any, **lengths: Any) -> None:
    """Check the arguments of a schedule (OPT-4).

    Args:
        step: an integer, 0 or more.
        **lengths: integers, at least 1, by name.

    Raises:
        TypeError: for what is no integer.
        ValueError: for smaller ones.
    """
    distance("step", step)
    for name, length in lengths.items():
        if natural(name, length) == 0:
            raise ValueError(f"{name} must be at least 1, got 0")


# --- initialisers -----------------------------------------------------------------------------------------------------


def uniform_numbers(name: str, values: np.ndarray | None) -> None:
    """Check random numbers, where they can be read (INIT-1).

    Args:
        name: what messages call them.
        values: the numbers, or None.

    Raises:
        ValueError: for numbers outside [0, 1).
    """
    if values is not None and values.size and not bool(((values >= 0) & (values < 1)).all()):
        raise ValueError(f"{name} must lie in [0, 1), got values from {values.min()} to {values.max()}")


def linear_numbers(weight: Any, bias: Any = None) -> None:
    """Check the shapes and dtypes of the random numbers for a projection (INIT-1).

    Args:
        weight: [in, out].
        bias: [out] in the same dtype, or None.

    Raises:
        TypeError: for other dtypes.
        ValueError: for other shapes.
    """
    inner, outer = ranked("weight", weight, "in, out")
    dtype = floating("weight", weight)
    if inner == 0:
        raise ValueError("weight must have at least one row, got 0")
    if bias is not None:
        if floating("bias", bias) != dtype:
            raise TypeError(f"weight, bias must share one dtype, got {dtype}, {dtype_name(bias)}")
        if shape_of("bias", bias) != (outer,):
            raise ValueError(f"bias must have shape [{outer}], got {list(bias.shape)}")


def embedding_numbers(normal: Any, padding: Any) -> None:
    """Check the arguments of embedding_default (INIT-1).

    Args:
        normal: [N, E].
        padding: a row of it, or None.

    Raises:
        TypeError: for other dtypes.
        ValueError: for another shape, and for a row that is not there.
    """
    rows, _ = ranked("normal", normal, "vocabulary, width")
    floating("normal", normal)
    if padding is not None and natural("padding", padding) >= rows:
        raise ValueError(f"padding must be a row of the {rows}, got {padding}")
