"""What is wrong with a single answer, where that is no number.

`conformance.checks.findings` has the kinds that checks and runners find.
"""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar


@dataclass(frozen=True)
class Detail:
    """What is wrong, where it is not a number in place of another one: one class for each kind, with its facts.

    kind: its name in files and reports, that of its class unless another is given.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        words = (f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        cls.kind = kind or "".join(words).removeprefix("_")


class WrongPart(Detail):
    """What `WrongAnswer` carries: the kinds that a single answer shows."""


@dataclass(frozen=True)
class Missing(WrongPart):
    """There is no such result."""


@dataclass(frozen=True)
class Returned(WrongPart):
    """The call returned something else than its results. got: in words. names: of the results. array: the kind of each.

    One of the two last is empty: that which is not to blame.
    """

    got: str
    names: tuple[str, ...] = ()
    array: str = ""


@dataclass(frozen=True)
class OtherType(WrongPart, kind="type"):
    """A result is no array. array: the kind that it must be; or count: of the arrays that it must have."""

    got: str
    array: str = ""
    count: int | None = None


@dataclass(frozen=True)
class ReturnedGradients(WrongPart):
    """The function for gradients returned something else. got: in words.

    of: the argument or projection of which it is the gradient; empty for all that was returned. names: of the arguments
    whose gradients it must return. array: the kind of one gradient. count: of the gradients in a list. lacks: the field
    that a structure has not.
    """

    got: str
    of: str = ""
    names: tuple[str, ...] = ()
    array: str = ""
    count: int | None = None
    lacks: str = ""


@dataclass(frozen=True)
class Materialized(WrongPart):
    """The function `materialize` gave something else than an array."""

    got: str


@dataclass(frozen=True)
class OtherDevice(WrongPart, kind="device"):
    """A result lies where the inputs do not."""

    device: str


@dataclass(frozen=True)
class DtypeOrShape(WrongPart):
    """An array of another dtype or shape. dtypes: those that it may have, and due: its shape.

    swapped: whether heads and lengths have changed places. layout: that in which a model's own function returns it,
    whose axes are then told; empty elsewhere. rank: of several, the one that returned it.
    """

    dtype: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    due: tuple[int, ...]
    swapped: bool = False
    layout: str = ""
    rank: int | None = None

    @property
    def has_wrong_dtype(self) -> bool:
        """Whether the dtype alone is wrong."""
        return self.dtype not in self.dtypes and self.shape == self.due


@dataclass(frozen=True)
class RanksDiffer(WrongPart):
    """What must be the same on every rank is not. rank: where it is another one than on rank 0."""

    rank: int


class WrongAnswer(Exception):
    """The subject returned something that is no answer. name: of the result or gradient, or "call" for all of them."""

    def __init__(self, detail: WrongPart, name: str = "call") -> None:
        super().__init__(detail, name)
        self.name, self.detail = name, detail


# --- where a subject raised an error ----------------------------------------------------------------------------------


JUDGE = Path(__file__).parents[1]
INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def find_raising_line(error: BaseException, code: object) -> str:
    """Return the innermost line of the subject's own code, as "kernels.py:12 in attention"; empty if none ran.

    What the judge calls for itself, Python's library and installed packages are not the subject's, but for the package
    that the subject is from. code: its function or module.
    """
    package = package_of(getattr(inspect.getmodule(code), "__name__", ""))
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_own(frame, package)]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{relative_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def is_own(frame: FrameType, package: str) -> bool:
    file = Path(frame.f_code.co_filename)
    if file.is_relative_to(JUDGE) or frame.f_code.co_filename.startswith("<frozen"):
        return False
    of_package = bool(package) and package_of(frame.f_globals.get("__name__") or "") == package
    return of_package or not any(file.is_relative_to(folder) for folder in INSTALLED)


def package_of(module: str) -> str:
    return module.partition(".")[0]


def relative_path(file: str) -> str:
    """Return the path from the working directory, where the file is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
