"""The record of an operation: all that the judge knows of it, in one place.

`conformance/operations/NAME.py` makes one for each operation. Everything else looks it up here, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conformance.cases.axes import Described
from conformance.cases.case import Case

if TYPE_CHECKING:
    import numpy as np
    from hypothesis import strategies as st

    from conformance.bounds.arithmetic import Approx, Precision
    from conformance.cases.declaration import Declaration
    from conformance.checks.probe import Probe
    from conformance.checks.refusals import Numbers, Refusal
    from conformance.checks.state import Cases
    from conformance.diagnosis.matching import Failing, Mistake
    from conformance.diagnosis.row_sums import RowSum

Shape = tuple[int, ...]
Histories = dict[str, "st.SearchStrategy[Cases]"]


@dataclass(frozen=True)
class Structure:
    """A NamedTuple of linear layers that an operation takes as its argument `parameters`."""

    kind: Callable[..., Any]
    fields: tuple[str, ...]


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
class Operation:
    """All that the judge knows of one operation.

    What it is:

    name: of the function in `reference_numpy`, `torch_impl` and `jax_impl`; with `_vjp`, of its gradients. The function
        of the same name in `oracle/ball` evaluates it exactly.
    rules: the rule that speaks of each feature of `declaration.FEATURES`, and of "dtype"; "" stands for any other.
    arguments: the positional ones; all others are keywords.
    differentiated: arguments that have gradients.
    results: their names; those of a list of arrays and of the state as one name.
    structure: of its argument `parameters`, where it has one.
    state: of its argument `state`, where it has one.
    lists: arguments and results that are lists of arrays, a result as long as the argument of its name.
    wide: inputs and results in the compute dtype, whatever the dtype of the case.
    single: results that may be float32 where the subject declares this of angles.
    positive: inputs that are never negative.
    masked: whether it has queries, keys and a mask.
    norm: whether it is a norm, of `x` over the axes of `weight`.
    copies: whether it copies numbers from an input, and computes nothing unless an option asks for it.
    numbers: results that are plain numbers.
    copied: which elements of a result or gradient are copies, to the bit, of an input's or the cotangent's.
    rows: the input whose leading axes are rows, where it has one.
    least_width: the smallest width that it takes.
    width_unit: what the number of its columns must be a multiple of.

    Its sizes:

    shape: of a result, from the case, the name of the result, and the layout of attention's arrays ("BHTD", "BTHD").
    dimensions: the sizes of a case, by names of `declaration.DIMENSIONS`.
    axes: of all arrays of a case, as `cases/axes.py` describes them.

    What is right:

    bounds: the value and the error bound of every result and every gradient that a case asks for, before results are
        rounded to the dtype of the case, which `bounds.operations.bound` adds.
    relaxed: the bounds below the profile `strict`, where the operation has some of its own.
    work: an estimate of the work of ball arithmetic, in multiplications of two balls, from how often each product of
        matrices is taken, whether there are gradients, and the sizes as keywords.

    How it is judged:

    cases: the strategy that draws all its features; keywords: dtypes, declaration.
    probes: all that tests its rules, but for what every operation has (`operations/common.py`).
    refusals: calls that must be refused.
    histories: several calls in a row, by what differs in them; `count`: so many of each at most.
    mistakes: those that implementations are known to make, beside those of every masked operation.
    measured: more of them in one result, by its name, with numbers that the answers tell.
    row_sums: the gradients that are sums over rows, by name, for mistakes in which rows count and how they are added.
    """

    name: str
    rules: Mapping[str, str]
    arguments: tuple[str, ...]
    differentiated: tuple[str, ...]
    shape: Callable[[Case, str, str], Shape]
    dimensions: Callable[[Case], dict[str, int]]
    axes: Callable[[Case], Described]
    bounds: Callable[[Case, Precision], dict[str, Approx]]
    work: Callable[..., float]
    cases: Callable[..., st.SearchStrategy[Case]]
    probes: Callable[[Declaration], list[Probe]]
    refusals: Callable[[Declaration, Numbers], Iterator[Refusal]]
    histories: Callable[[str, Declaration, int | None], Histories]
    results: tuple[str, ...] = ("output",)
    structure: Structure | None = None
    state: State | None = None
    lists: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    masked: bool = False
    norm: bool = False
    copies: bool = False
    numbers: tuple[str, ...] = ()
    copied: Callable[[Case, str], np.ndarray] | None = None
    rows: Rows | None = None
    least_width: int = 1
    width_unit: int = 1
    relaxed: Callable[[Case], dict[str, np.ndarray]] | None = None
    mistakes: tuple[Mistake, ...] = field(default=())
    measured: Callable[[Failing, str], Iterator[Mistake]] | None = None
    row_sums: Callable[[Failing], dict[str, RowSum]] | None = None

    @property
    def takes_arrays(self) -> bool:
        """Whether it has arrays among its arguments."""
        return bool(self.differentiated or self.lists or self.state)

    def is_wide(self, name: str) -> bool:
        """Whether the input or result of this name is in the compute dtype."""
        return name.partition("[")[0] in self.wide


def operations() -> dict[str, Operation]:
    """Return every operation by name, in the order in which they are studied."""
    # The only import upwards: records name functions of every room above, and every room looks records up.
    from conformance.operations import OPERATIONS

    return OPERATIONS


def operation_named(name: str) -> Operation:
    return operations()[name]
