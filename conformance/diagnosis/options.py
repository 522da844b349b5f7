"""Changes of a case that mistakes make: other options. `runner.shrinking.without` leaves inputs out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.runner.shrinking import Change


def options(**changed: Any) -> Change:
    """With these options; None where the case has them."""

    def change(case: Case) -> Case | None:
        if all(case.options.get(name) == value for name, value in changed.items()):
            return None
        return replace(case, options=case.options | changed)

    return change
