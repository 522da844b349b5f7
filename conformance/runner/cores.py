"""Subjects that are asked together, because the same cases are for all of them; and the processes that ask them."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Hashable, Sequence

from conformance.cases.declaration import Declaration
from conformance.oracle.reference import balls_available


def kind(declaration: Declaration) -> str:
    """The same for all subjects for which the same cases are drawn."""
    return json.dumps([declaration.contents(), declaration.compiled], sort_keys=True)


def group_indices(kinds: Sequence[Hashable]) -> list[list[int]]:
    """Indices of equal kinds, largest group first."""
    found: dict[Hashable, list[int]] = {}
    for index, of in enumerate(kinds):
        found.setdefault(of, []).append(index)
    return sorted(found.values(), key=len, reverse=True)


def prepare_worker() -> None:
    """Prepare a process that judges in itself: compiled code is kept, and it has one of the cores."""
    from conformance.runner.compiled_code import keep_compiled_code
    from conformance.runner.in_process import ignore_warnings_of_numbers

    keep_compiled_code()
    ignore_warnings_of_numbers()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").set_num_threads(1)
