"""Bounds of what the profile `strict` alone asks for: how far from exact a result may be below it.

16-bit inputs. The weights may be rounded to the inputs' dtype before they are multiplied: the bound is that of a
subject that declares weights=inputs (`rounding.py`).

An operation's record may have bounds of its own in place of these.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.bounds.operations import Bounds, bound, merged_bound
from conformance.cases.case import Case
from conformance.cases.operation import operation_named
from specification.dtypes import HALF


def weights_in_inputs(case: Case) -> Case | None:
    """The case of a subject that rounds the weights to the inputs' 16 bits; None where that allows nothing more."""
    if case.dtype not in HALF or not operation_named(case.operation).masked or "weights" in case.rounding:
        return None
    return replace(case, rounding={**case.rounding, "weights": case.dtype})


def relaxed_bound(case: Case) -> Bounds | None:
    """The bounds below `strict`; None where they are those of `bound`."""
    own = operation_named(case.operation).relaxed
    if own is not None:
        return own(case)
    rounded = weights_in_inputs(case)
    return None if rounded is None else bound(rounded)


def relaxed_merged_bound(parts: list[Case]) -> Bounds | None:
    """As `relaxed_bound`, for attention over parts of the keys that are then merged."""
    rounded = [weights_in_inputs(part) for part in parts]
    return None if None in rounded else merged_bound([part for part in rounded if part is not None])
