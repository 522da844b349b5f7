"""Which of the project's functions run: only what calls an edited function can notice the edit."""

from __future__ import annotations

import sys
from typing import Any

from mutation.mutants import ROOT

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
