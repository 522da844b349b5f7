"""Every array that a function names while it runs: the source's own steps, watched, and nothing computed twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from study.sources import ROOT

Captured = dict[tuple[str, str], Any]
"""By (function, name): the last array that the function gave that name, at the first call that had it."""


@contextmanager
def watching(package: str, functions: set[str], keep: Callable[[Any], Any]) -> Iterator[Captured]:
    """Keeps what functions of a package name; `keep` makes NumPy arrays of a framework's, and None of all else.

    A method is known by its class's part too: `forward` stands for every `forward`.
    """
    found: Captured = {}
    folder = str(ROOT / package)

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            for name, value in frame.f_locals.items():
                array = keep(value)
                if array is not None:
                    found.setdefault((frame.f_code.co_name, name), array)
        return local

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        watched = frame.f_code.co_name in functions and frame.f_code.co_filename.startswith(folder)
        return local if watched else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield found
    finally:
        sys.settrace(before)
