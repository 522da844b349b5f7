"""Recording of every array that a function names while it runs; nothing is computed twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from conformance.side_by_side.sources import ROOT

Captured = dict[tuple[str, str], Any]
"""By (function, name): the last array that the function gave that name, at the first call that had it."""


class Call(NamedTuple):
    """A call that has come to its end: what its names stand for then, and what it gives."""

    function: str
    names: dict[str, Any]
    result: Any


@contextmanager
def returning(package: str, functions: set[str], told: Callable[[Call], None]) -> Iterator[None]:
    """Tells of every call of these functions of a package, inner ones first.

    A method is known by its class's part too: `forward` stands for every `forward`.
    """
    folder = str(ROOT / package)

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "return":
            told(Call(frame.f_code.co_name, frame.f_locals, argument))
        return local

    def called(frame: FrameType, event: str, argument: object) -> Any:
        watched = frame.f_code.co_name in functions and frame.f_code.co_filename.startswith(folder)
        return local if watched else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def watching(package: str, functions: set[str], keep: Callable[[Any], Any]) -> Iterator[Captured]:
    """Keeps what functions of a package name; `keep` makes NumPy arrays of a framework's, and None of all else."""
    found: Captured = {}

    def told(call: Call) -> None:
        for name, value in call.names.items():
            array = keep(value)
            if array is not None:
                found.setdefault((call.function, name), array)

    with returning(package, functions, told):
        yield found
