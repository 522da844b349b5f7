"""Changes of a case that mistakes make: other options, or an input left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.cases.case import Case

Change = Callable[[Case], Case | None]
"""None where the change makes no difference."""


def options(**changed: Any) -> Change:
    def change(case: Case) -> Case | None:
        if all(case.options.get(name) == value for name, value in changed.items()):
            return None
        return replace(case, options=case.options | changed)

    return change


def without_input(name: str) -> Change:
    def change(case: Case) -> Case | None:
        if name not in case.inputs:
            return None
        return replace(case, inputs={n: a for n, a in case.inputs.items() if n != name})

    return change
