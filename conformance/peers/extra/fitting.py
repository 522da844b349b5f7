"""Calls changed to those that a library has parameters for: whether a path takes a case, and the case that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case


def set_options(case: Case, operation: str, **options: Any) -> Case:
    """The call of the operation with options that the library has no other values for."""
    return replace(case, options=case.options | options) if case.operation == operation else case


def is_interleaved(case: Case) -> bool:
    """Calls of pairs of neighbours, where a library has no others."""
    return case.options.get("pairing") == "interleaved"


def interleave(case: Case) -> Case:
    return set_options(case, "rotary_embedding", pairing="interleaved")


def keys_come_before(case: Case) -> bool:
    """Calls of ALiBi without a key after a query: there most libraries have a bias for the distance, not 0 or more."""
    return bool(case.options.get("offset", 0) >= case.options["key_length"] - 1)


def put_keys_before(case: Case) -> Case:
    if case.operation != "alibi_bias":
        return case
    return set_options(case, "alibi_bias", offset=max(case.options.get("offset") or 0, case.options["key_length"] - 1))


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


INTERLEAVED: dict[str, Any] = {"takes": is_interleaved, "fitted": interleave}
KEYS_BEFORE: dict[str, Any] = {"takes": keys_come_before, "fitted": put_keys_before}
LAST_AT_LAST: dict[str, Any] = {"takes": is_last_at_last, "fitted": put_last_at_last}
