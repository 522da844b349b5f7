"""Changes that many mistakes are: another option or input, in every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.mistakes.call import Call


def set_options(**changed: Any) -> Callable[..., Case | None]:
    """Answer the call with these options; None where it has them already."""

    def change(call: Call) -> Case | None:
        options = call.case.options
        if all(options.get(name) == value for name, value in changed.items()):
            return None
        return replace(call.case, options=options | changed)

    return change


def drop_inputs(*names: str) -> Callable[..., Case | None]:
    """Answer the call without these inputs; None where it has none of them."""

    def change(call: Call) -> Case | None:
        if not any(name in call.case.inputs for name in names):
            return None
        inputs = {name: array for name, array in call.case.inputs.items() if name not in names}
        return replace(call.case, inputs=inputs)

    return change
