"""Calls changed to those that a library has parameters for: whether a path takes a case, and the case that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case


def set_options(case: Case, operation: str, **options: Any) -> Case:
    """The call of the operation with options that the library has no other values for."""
    return replace(case, options=case.options | options) if case.operation == operation else case


def is_last_at_last(case: Case) -> bool:
    """Calls of relative positions whose last query stands at the last key."""
    options = case.options
    return bool((options.get("offset") or 0) == options["key_length"] - options["query_length"])


def put_last_at_last(case: Case) -> Case:
    """The call with the queries there, if there are no more of them than keys."""
    if case.operation != "relative_position_bias":
        return case
    offset = case.options["key_length"] - case.options["query_length"]
    return set_options(case, case.operation, offset=offset) if offset >= 0 else case


LAST_AT_LAST: dict[str, Any] = {"takes": is_last_at_last, "fitted": put_last_at_last}
