"""What checks and runners find: facts. `conformance.reports.sentences` has the words for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from conformance.cases.case import Case
from conformance.checks.levels import CORE
from conformance.subjects.wrong_answers import Detail, DtypeOrShape, WrongPart


@dataclass(frozen=True)
class Finding:
    """The worst element of one result. `ratio` is |got - exact| / bound; infinity for what no bound can excuse.

    detail: what is wrong, where it is not that number. level: the lowest profile that asks for what is broken here,
    where something is. raised_at: the line of the subject's code that raised the error of which the detail tells; empty
    where there is none.
    """

    name: str
    ratio: float
    index: tuple[int, ...] = ()
    got: float = 0.0
    expected: float = 0.0
    bound: float = 0.0
    detail: Detail | None = None
    level: str = CORE
    raised_at: str = ""

    @property
    def kind(self) -> str:
        return "value" if self.detail is None else self.detail.kind

    @property
    def is_of_values(self) -> bool:
        """Whether a result holds something else than it should."""
        return self.kind in ("value", "not_zero", "not_spoiled")


# --- no answer --------------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    """A size that a call failed at, and none before it had. dimension: a name in `DIMENSIONS`.

    answered: the largest one of a call that did not fail.
    """

    dimension: str
    extent: int
    answered: int = 0


@dataclass(frozen=True)
class Raised(Detail):
    """The subject raised an error. error: its type. text: its first line. threads: that called at the same time.

    memory: gigabytes that its process might have, where the error tells that these were not enough.
    """

    error: str
    text: str
    threads: int = 0
    size: Size | None = None
    memory: float = 0.0


@dataclass(frozen=True)
class TookTooLong(Detail):
    """A check took longer than its time limit. ended: whether its process had to be ended.

    crowding: by how much the limit was longer in wall time, on a busy machine where only wall time can be had.
    ranks: of several, those that did not answer while the others waited for them.
    """

    seconds: float
    ended: bool = False
    size: Size | None = None
    crowding: float = 1.0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProcessEnded(Detail):
    """The subject's process ended. code: its exit code, or minus its signal; None where it had to be ended.

    rank: of several, the one whose process it is.
    """

    code: int | None
    size: Size | None = None
    rank: int | None = None


NoAnswer = Raised | TookTooLong | ProcessEnded


class LostRank(Exception):
    """One of several ranks has not answered. detail: how that shows."""

    def __init__(self, detail: TookTooLong | ProcessEnded) -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass(frozen=True)
class Printed(Detail):
    """The subject wrote to standard output. text: the beginning of it."""

    text: str


# --- numbers of another kind ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskDiffers(Detail):
    """The array of a mask is not what the mask's predicate says."""


@dataclass(frozen=True)
class NotANumber(Detail, kind="nan"):
    """A result has NaN somewhere, where none is due."""


@dataclass(frozen=True)
class NotZero(Detail):
    """A difference is not 0."""

    got: float


@dataclass(frozen=True)
class NotSpoiled(Detail):
    """The first number, if there is one, where NaN or infinity is due."""

    numbers: tuple[float, ...]
    dtype: str


# --- calls that should be refused -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accepted(Detail):
    """A call that should be refused was not. due: the type of the error; empty for any. answer: what came is none."""

    due: str
    answer: WrongPart | None = None


@dataclass(frozen=True)
class WrongError(Detail):
    """A call was refused by another error than that which is due; empty for any."""

    error: str
    due: str
    text: str


@dataclass(frozen=True)
class ErrorWithoutText(Detail):
    """A call was refused by an error that says nothing."""

    error: str


@dataclass(frozen=True)
class Unrefused(Detail):
    """A call beyond what is supported was answered wrongly."""

    found: Finding


Error = Raised | WrongError | ErrorWithoutText

# --- several calls ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """When a call was wrong: as one of several calls in a row, or by passes or threads beside others.

    number: of the call, from 1. count: of the calls in a row, or of the threads.
    """

    name: Literal["in_a_row", "after_forward_passes", "second_backward_pass", "threads"]
    number: int = 0
    count: int = 0


@dataclass(frozen=True)
class WrongInPhase(Detail):
    """An answer was wrong there. found: the finding, or what the answer was in place of one."""

    phase: Phase
    found: Finding | WrongPart


@dataclass(frozen=True)
class NotDeterministic(Detail):
    """Equal calls gave different bits. call: the number of the first that differs; None of two."""

    call: int | None = None


@dataclass(frozen=True)
class NoGradientsAgain(Detail):
    """The same call has gradients once only."""


@dataclass(frozen=True)
class Unreadable(Detail):
    """An input cannot be read any more after the call."""


@dataclass(frozen=True)
class InputChanged(Detail):
    """The call changed an input."""


@dataclass(frozen=True)
class ResultChanged(Detail):
    """A later call changed a result."""


Role = Literal["input", "earlier", "other", "cotangent"]
"""Of what a result shares memory with: a result of an earlier call or of another one, an input or a cotangent."""


@dataclass(frozen=True)
class SharedMemory(Detail):
    """A result lies in the memory of something else. other: its name."""

    role: Role
    other: str


@dataclass(frozen=True)
class GradientLost(Detail):
    """The output of a model's own function has no gradient."""


@dataclass(frozen=True)
class NotReproducible(Detail):
    """A call that was wrong is right when it is asked again. fresh: in a process that has called nothing."""

    fresh: bool
    found: Finding


@dataclass(frozen=True)
class DependsOnCalls(Detail):
    """A call is wrong after others only. before: the case of the last of these. more: the calls before that."""

    before: Case = field(compare=False)
    more: int
    found: Finding


# --- steps of models --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurplusStep(Detail):
    """The definition takes no such step."""


Source = str | int | None
"""Where an array comes from: the name of the step whose result it is, or the number of an input; None for neither."""


@dataclass(frozen=True)
class OtherSource(Detail):
    """A step is given, or a model returns, an array from elsewhere than in the definition."""

    got: Source
    due: Source
    returned: bool = False


@dataclass(frozen=True)
class ChangedLater(Detail):
    """The result of a step is changed after it was given."""


@dataclass(frozen=True)
class TimesTaken(Detail):
    """A step is not taken once."""

    count: int


@dataclass(frozen=True)
class SurplusTensor(Detail):
    """The definition has no such tensor."""


# --- diagnoses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownMistake(Detail, kind="mistake"):
    """The name of a known mistake that gives the same answers."""

    name: str


def details(finding: Finding) -> Iterator[Detail]:
    """The detail of a finding, and those of the findings that it is about, from the outside."""
    inner: Any = finding
    while inner is not None:
        detail: Any = inner.detail if isinstance(inner, Finding) else inner
        if detail is not None:
            yield detail
        inner = getattr(detail, "found", None) or getattr(detail, "answer", None)


def is_error(finding: Finding) -> bool:
    """Whether the subject raised an error, be it one that is due or not."""
    return isinstance(finding.detail, Error)


def same_error(one: Finding, other: Finding) -> bool:
    """Whether two calls raised the same error in one line; without a line, with the same text."""
    if not isinstance(one.detail, Error) or not isinstance(other.detail, Error):
        return False
    if not one.raised_at or not other.raised_at:
        return one.detail == other.detail
    return one.raised_at == other.raised_at and source(one.detail) == source(other.detail)


def source(error: Error) -> tuple[str, int]:
    """The type of an error, and the threads that called when it was raised."""
    return error.error, error.threads if isinstance(error, Raised) else 0


def wrong_dtype(finding: Finding) -> str | None:
    """The dtype of a result that has the right shape and another dtype; None where that is not its fault."""
    arrays = (detail for detail in details(finding) if isinstance(detail, DtypeOrShape))
    return next((array.dtype if array.has_wrong_dtype else None for array in arrays), None)


def has_swapped_heads(finding: Finding) -> bool:
    """Whether a result is wrong in that heads and lengths have changed places."""
    return any(isinstance(detail, DtypeOrShape) and detail.swapped for detail in details(finding))


# --- at which sizes ---------------------------------------------------------------------------------------------------


# fmt: off
AxisName = Literal[
    "B", "G", "S", "H", "Q", "K", "D", "V", "parts", "rows", "W", "E", "E of key", "E of value", "inner", "output",
    "model", "vocabulary", "classes", "length", "T", "offset", "H D", "G D", "G V", "H V",
]
# fmt: on
"""Dimensions as `cases/facts.py` names them, without numbers; H: all query heads. Of multi-head attention, the columns
of the projections of query, key and value, and of the outputs of all heads."""

Kind = Literal[
    "first", "up to", "from", "no power of two", "power of two", "no multiple", "multiple", "product", "listed"
]


@dataclass(frozen=True)
class Threshold:
    """At which sizes a violation shows, and at which not.

    axes: whose sizes they are: one axis, several that change together, or the two of a product.
    kind: the simplest rule that agrees with all that was tried. "first": wrong from a size on. "product": wrong where
        the product of both sizes passes a number. "listed": no rule agrees.
    wrong, right: the sizes that were tried, in order; of a product those of the first axis, nearest to where it begins.
    above: it is wrong at sizes above this one only; 0 for none.
    multiple: of which the wrong sizes are a multiple, or no multiple.
    beside: of a product, the size of the second axis.
    """

    axes: tuple[AxisName, ...]
    kind: Kind
    wrong: tuple[int, ...]
    right: tuple[int, ...]
    above: int = 0
    multiple: int = 0
    beside: int = 0

    @property
    def is_listed(self) -> bool:
        """Whether no rule agrees with all that was tried: of "first", where a larger size is right again."""
        return self.kind == "listed" or (self.kind == "first" and self.right[-1] > self.wrong[0])

    @property
    def last_right(self) -> int:
        """The largest size that is right below the first wrong one."""
        return max(size for size in self.right if size < self.wrong[0])
