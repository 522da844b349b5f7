"""Which of the project's functions run: only what calls an edited function can notice the edit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from mutation.mutants import ROOT, Mutant

PACKAGES = tuple(f"{ROOT / name}/" for name in ("reference_numpy", "specification", "conformance"))
"""Folders of what may be edited: neither the tests nor the libraries, which may lie in the project's folder, too."""

Functions = frozenset[tuple[str, str]]
"""(file, function) pairs: paths from the project's folder, and functions at module level."""


class Calls:
    """Inside `with`, notes every call; afterwards `functions` are those in the project's files."""

    functions: Functions = frozenset()

    def __enter__(self) -> Calls:
        self.places: set[tuple[str, str]] = set()
        sys.setprofile(self.note)
        return self

    def note(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self.places.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(None)
        places = [(file.removeprefix(f"{ROOT}/"), name) for file, name in self.places if file.startswith(PACKAGES)]
        self.functions = frozenset((file, name.partition(".")[0]) for file, name in places)


class Calling(Protocol):
    """What is asked of a mutant: a question of the judge, or a test."""

    @property
    def functions(self) -> Functions: ...


Asked = TypeVar("Asked", bound=Calling)


def relevant(mutant: Mutant, asked: Sequence[Asked]) -> list[Asked]:
    """Those that call the edited function, or of which no call is known; all if none is known to call it."""
    place = (mutant.file, mutant.function)
    called = any(place in one.functions for one in asked)
    return [one for one in asked if place in one.functions or not (called and one.functions)]
