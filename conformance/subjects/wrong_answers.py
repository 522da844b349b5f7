"""What is wrong with an answer, where that is no number: one class for each kind, with its facts.

These are the kinds that a single answer shows. `conformance.checks.findings` has those that checks and runners find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

FindingKind = Literal[
    "value",
    "missing",
    "returned",
    "type",
    "returned_gradients",
    "materialized",
    "device",
    "dtype_or_shape",
    "raised",
    "took_too_long",
    "process_ended",
    "printed",
    "mask_differs",
    "nan",
    "not_zero",
    "not_spoiled",
    "accepted",
    "wrong_error",
    "error_without_text",
    "unrefused",
    "wrong_in_phase",
    "not_deterministic",
    "no_gradients_again",
    "unreadable",
    "input_changed",
    "result_changed",
    "shared_memory",
    "gradient_lost",
    "not_reproducible",
    "depends_on_calls",
    "surplus_step",
    "other_source",
    "changed_later",
    "times_taken",
    "surplus_tensor",
    "mistake",
]
"""Every kind of finding. A "value" is a number where another one was due; all others have a class of this name's."""


@dataclass(frozen=True)
class Missing:
    """There is no such result."""

    kind: ClassVar[FindingKind] = "missing"


@dataclass(frozen=True)
class Returned:
    """The call returned something else than its results. got: in words. names: of the results. array: the kind of each.

    One of the two last is empty: that which is not to blame.
    """

    kind: ClassVar[FindingKind] = "returned"
    got: str
    names: tuple[str, ...] = ()
    array: str = ""


@dataclass(frozen=True)
class OtherType:
    """A result is no array. array: the kind that it must be; or count: of the arrays that it must have."""

    kind: ClassVar[FindingKind] = "type"
    got: str
    array: str = ""
    count: int | None = None


@dataclass(frozen=True)
class ReturnedGradients:
    """The function for gradients returned something else. got: in words.

    of: the argument or projection of which it is the gradient; empty for all that was returned. names: of the arguments
    whose gradients it must return. array: the kind of one gradient. count: of the gradients in a list. lacks: the field
    that a structure has not.
    """

    kind: ClassVar[FindingKind] = "returned_gradients"
    got: str
    of: str = ""
    names: tuple[str, ...] = ()
    array: str = ""
    count: int | None = None
    lacks: str = ""


@dataclass(frozen=True)
class Materialized:
    """The function `materialize` gave something else than an array."""

    kind: ClassVar[FindingKind] = "materialized"
    got: str


@dataclass(frozen=True)
class OtherDevice:
    """A result lies where the inputs do not."""

    kind: ClassVar[FindingKind] = "device"
    device: str


@dataclass(frozen=True)
class DtypeOrShape:
    """An array of another dtype or shape. dtypes: those that it may have, and due: its shape.

    swapped: whether heads and lengths have changed places. layout: that in which a model's own function returns it,
    whose axes are then told; empty elsewhere.
    """

    kind: ClassVar[FindingKind] = "dtype_or_shape"
    dtype: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    due: tuple[int, ...]
    swapped: bool = False
    layout: str = ""

    @property
    def has_wrong_dtype(self) -> bool:
        """Whether the dtype alone is wrong."""
        return self.dtype not in self.dtypes and self.shape == self.due


WrongPart = Missing | Returned | OtherType | ReturnedGradients | Materialized | OtherDevice | DtypeOrShape
"""What `WrongAnswer` carries."""


class WrongAnswer(Exception):
    """The subject returned something that is no answer. name: of the result or gradient, or "call" for all of them."""

    def __init__(self, detail: WrongPart, name: str = "call") -> None:
        super().__init__(detail, name)
        self.name, self.detail = name, detail
