"""Checks on the arguments of optimizers, schedules and initialisers.

A tree is any nesting of NamedTuples, dicts, lists, tuples and arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specification.arrays import Array
from specification.checks.arguments import (
    check_number,
    companion_dtype,
    distance,
    dtype_of,
    epsilon,
    flag,
    natural,
    refuse,
    shape_of,
    structure,
    values_within,
)
from specification.checks.shapes import Float, check_shapes
from specification.dtypes import compute_dtype_name, dtype_name
from specification.optimizers import AdamState, SgdState
from specification.parameters import Tree, leaves

__all__ = [
    "adam", "clip", "embedding_numbers", "linear_numbers", "require_nonnegative", "schedule", "sgd", "trained",
    "uniform_numbers",
]  # fmt: skip

# --- trees ------------------------------------------------------------------------------------------------------------


def trained(name: str, tree: Tree) -> None:
    """Check a tree of parameters or gradients: floating arrays, at least one."""
    arrays = leaves(tree, name)
    if not arrays:
        refuse(name, "hold at least one array", "none")
    for path, array in arrays.items():
        shape_of(path, array)
        dtype_of(path, array, "Float")


def compare_trees(name: str, tree: Tree, parameters: Tree) -> list[tuple[str, Any, str]]:
    """Check that a tree has arrays where parameters have, of their shapes; return (path, array, parameter's dtype)."""
    own, expected = leaves(tree, name), leaves(parameters, name)
    if own.keys() != expected.keys():
        path = next(path for path in (*expected, *own) if (path in own) != (path in expected))
        more, fewer = (name, "parameters") if path in own else ("parameters", name)
        place = path.removeprefix(name) or "the root"
        refuse(name, "have the structure of parameters", f"{more} with an array at {place} where {fewer} has none")
    for path, array in own.items():
        if shape_of(path, array) != tuple(expected[path].shape):
            refuse(path, f"have shape {list(expected[path].shape)} like the parameter", list(array.shape))
    return [(path, array, dtype_name(expected[path])) for path, array in own.items()]


def gradients_of(parameters: Tree, gradients: Tree) -> None:
    """Check parameters and gradients, each in the dtype of its parameter or the one in which that is computed."""
    trained("parameters", parameters)
    for path, array, dtype in compare_trees("gradients", gradients, parameters):
        companion_dtype(path, array, dtype)


def remembered(name: str, tree: Tree, parameters: Tree) -> None:
    """Check a part of an optimizer's state: like the parameters, in the dtype in which they are computed."""
    for path, array, dtype in compare_trees(name, tree, parameters):
        if dtype_of(path, array, "Float") != compute_dtype_name(dtype):
            wide = compute_dtype_name(dtype)
            refuse(path, f"be {wide} beside {dtype} parameters", dtype_name(array), TypeError)


# --- steps ------------------------------------------------------------------------------------------------------------


def require_nonnegative(name: str, value: object, *, fixed: bool = False) -> None:
    """Check that a number, where it can be read, is finite and at least 0."""
    check_number(name, value, lambda number: 0 <= number < math.inf, "be finite and at least 0", fixed=fixed)


def decay(name: str, value: object) -> None:
    """Check the factor of a moving average."""
    check_number(name, value, lambda number: 0 <= number < 1, "be at least 0 and below 1", fixed=True)


def adam(
    parameters: Tree,
    gradients: Tree,
    state: AdamState,
    learning_rate: float | Array,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Check the arguments of adam_step (OPT-1)."""
    gradients_of(parameters, gradients)
    structure("state", state, AdamState)
    distance("state.step", state.step)
    remembered("state.mean", state.mean, parameters)
    remembered("state.square", state.square, parameters)
    require_nonnegative("learning_rate", learning_rate)
    decay("beta_1", beta_1)
    decay("beta_2", beta_2)
    epsilon(eps)
    require_nonnegative("weight_decay", weight_decay, fixed=True)
    flag("decoupled", decoupled)


def sgd(
    parameters: Tree,
    gradients: Tree,
    state: SgdState,
    learning_rate: float | Array,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> None:
    """Check the arguments of sgd_step (OPT-2)."""
    gradients_of(parameters, gradients)
    structure("state", state, SgdState)
    remembered("state.velocity", state.velocity, parameters)
    require_nonnegative("learning_rate", learning_rate)
    decay("momentum", momentum)
    flag("nesterov", nesterov)
    require_nonnegative("weight_decay", weight_decay, fixed=True)
    if nesterov and momentum == 0:
        refuse("nesterov", "have a momentum above 0", 0)


def clip(gradients: Tree, limit: float) -> None:
    """Check the arguments of clip_by_global_norm, whose limit may be infinite (OPT-3)."""
    trained("gradients", gradients)
    check_number("limit", limit, lambda number: number > 0, "be above 0")


# --- schedules and initialisers ---------------------------------------------------------------------------------------


def schedule(step: int, **lengths: int) -> None:
    """Check the arguments of a schedule (OPT-4)."""
    distance("step", step)
    for name, length in lengths.items():
        natural(name, length, least=1)


def uniform_numbers(name: str, values: np.ndarray | None) -> None:
    """Check that random numbers, where they can be read, lie in [0, 1) (INIT-1)."""
    values_within(name, values, 0, 1)


@check_shapes
def linear_numbers(weight: Float[Array, "I O"], bias: Float[Array, "O"] | None = None) -> None:
    """Check the shapes and dtypes of the random numbers for a projection (INIT-1)."""
    if weight.shape[0] == 0:
        refuse("weight", "have at least one row", 0)


@check_shapes
def embedding_numbers(normal: Float[Array, "N E"], padding: int | None) -> None:
    """Check the arguments of embedding_default, whose padding is a row or None (INIT-1)."""
    if padding is not None and natural("padding", padding) >= normal.shape[0]:
        refuse("padding", f"be a row of the {normal.shape[0]}", padding)
