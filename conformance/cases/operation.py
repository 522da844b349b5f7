"""The record of what an operation is: its arguments, its results, and what their names and shapes mean.

`facts.py` has one for each operation, and looks them up by name. What is right is in `bounds/` and `oracle/`, how cases
are drawn in `sampling/`, and how implementations are judged in `operations/`.

Axes of a case's arrays have names, so that one function can cut and grow the arrays of every operation. Every axis is a
product of dimensions, the outermost first: the query heads of attention are key heads times query heads to a key head,
and the columns of a fused projection are heads times their width. A size of 1 that stands for all of an axis is the
empty product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.cases.case import Case

Axis = tuple[str, ...]
Sizes = dict[str, int]
Arrays = dict[str, tuple[Axis, ...]]

Described = tuple[Sizes, Arrays, dict[str, Axis]]
"""Sizes of all dimensions; axes of inputs, cotangents ("-> output") and options ("option ..."); dimensions of arguments
that are lists of arrays, as "outputs[0]" is an element of one."""

B, Q, K, D, V = (("B",), ("Q",), ("K",), ("D",), ("V",))
HEADS: Axis = ("G", "S")
PAIRS = (B, HEADS, Q, K)
OFFSET = "offset"
"""The first position of a table: a number and no size of an array, and may be 0."""


def name_leading_axes(array: np.ndarray, trailing: int) -> tuple[tuple[Axis, ...], Sizes]:
    """The axes before the last `trailing` ones: rows, and where there are several, groups of them."""
    shape = array.shape[: array.ndim - trailing]
    names = ["rows", *(f"rows {i}" for i in range(1, len(shape)))][::-1]
    return tuple((name,) for name in names), dict(zip(names, shape, strict=True))


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """A NamedTuple that an operation takes as its argument `parameters`.

    fields: linear layers, networks of them, norms, or arrays. norms: those that are norms. optional: those that may be
    None.
    """

    kind: Callable[..., Any]
    fields: tuple[str, ...]
    norms: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """A NamedTuple that an operation takes as its argument `state`, and returns anew as its last result.

    A case holds each of its fields by name: arrays among the inputs, numbers among the options.
    """

    kind: Callable[..., Any]
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The input whose leading axes are rows, all treated alike; `trailing` axes of it make up one row."""

    name: str
    trailing: Callable[[Case], int]


@dataclass(frozen=True)
class OperationFacts:
    """What one operation is.

    name: of the function in `reference_numpy`, `torch_impl` and `jax_impl`; with `_vjp`, of its gradients. The function
        of the same name in `oracle/ball` evaluates it exactly.
    rules: the rule that speaks of each feature of `declaration.FEATURES`, and of "dtype"; "" stands for any other.
    option_rules: the rule that speaks of an option's values but the default.
    conventions: those of `declaration.CONVENTIONS` that mean something for it.
    arguments: the positional ones; all others are keywords.
    differentiated: arguments that have gradients.
    results: their names; those of a list of arrays and of the state as one name.
    structure: of its argument `parameters`, where it has one.
    projections: arguments that are linear layers.
    state: of its argument `state`, where it has one.
    lists: arguments and results that are lists of arrays, a result as long as the argument of its name.
    wide: inputs and results in the compute dtype, whatever the dtype of the case.
    single: results that may be float32 where the subject declares this of angles.
    positive: inputs that are never negative.
    masked: whether it has queries, keys and a mask.
    norm: whether it is a norm, of `x` over the axes of `weight`.
    copies: whether it copies numbers from an input, and computes nothing unless an option asks for it.
    numbers: results that are plain numbers.
    indices: results that are whole numbers, of 64 bits or of 32.
    copied: which elements of a result or gradient are copies, to the bit, of an input's or the cotangent's.
    rows: the input whose leading axes are rows, where it has one.
    least_width: the smallest width that it takes.
    width_unit: what the number of its columns must be a multiple of.

    Its sizes:

    shape: of a result, from the case, the name of the result, and the layout of attention's arrays ("BHTD", "BTHD").
    dimensions: the sizes of a case, by names of `declaration.DIMENSIONS`.
    dimension_names: those names, of which a subject may declare limits.
    axes: of all arrays of a case, as described above.
    fixed: dimensions that keep their size, where an axis is a sum of sizes and no product.
    tied: dimensions that change together.
    """

    name: str
    rules: Mapping[str, str]
    arguments: tuple[str, ...]
    differentiated: tuple[str, ...]
    shape: Callable[[Case, str, str], Shape]
    dimensions: Callable[[Case], dict[str, int]]
    dimension_names: tuple[str, ...]
    axes: Callable[[Case], Described]
    option_rules: Mapping[str, str] = field(default_factory=dict)
    conventions: tuple[str, ...] = ()
    results: tuple[str, ...] = ("output",)
    structure: Structure | None = None
    projections: tuple[str, ...] = ()
    state: State | None = None
    lists: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    masked: bool = False
    norm: bool = False
    copies: bool = False
    numbers: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    copied: Callable[[Case, str], np.ndarray] | None = None
    rows: Rows | None = None
    least_width: int = 1
    width_unit: int = 1
    fixed: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()

    @property
    def takes_arrays(self) -> bool:
        """Whether it has arrays among its arguments."""
        return bool(self.differentiated or self.lists or self.state)

    def is_wide(self, name: str) -> bool:
        """Whether the input or result of this name is in the compute dtype."""
        return name.partition("[")[0] in self.wide
