"""The state of an optimizer: a value, from which a step makes the next one (OPT-1, OPT-2).

Trees are any nesting of NamedTuples, dicts, lists, tuples and arrays. They hold NumPy arrays, torch tensors or JAX
arrays alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class AdamState(NamedTuple):
    """What Adam remembers (OPT-1).

    step: how many steps were taken; an int, and in JAX an int32 array of rank 0. mean, square: trees like the
    parameters, the moving averages of the gradient and of its square, in the compute dtype.
    """

    step: Any
    mean: Any
    square: Any


class SgdState(NamedTuple):
    """What gradient descent with momentum remembers (OPT-2): velocity, a tree like the parameters, compute dtype."""

    velocity: Any
