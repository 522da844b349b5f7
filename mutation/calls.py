"""Which of the project's functions run: only what calls an edited function can notice the edit."""

from __future__ import annotations

import sys
from typing import Any

from mutation.mutants import ROOT

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
        root = f"{ROOT}/"
        places = [(file.removeprefix(root), name) for file, name in self.places if file.startswith(root)]
        self.functions = frozenset((file, name.partition(".")[0]) for file, name in places)
