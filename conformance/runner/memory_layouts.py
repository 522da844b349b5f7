"""Violations that only a memory layout causes: in contiguous arrays the subject answers the same numbers rightly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.expectations import Planted, asked_case, change_cases
from conformance.checks.catalogue import Check
from conformance.checks.comparison import breaks
from conformance.checks.levels import STRICT
from conformance.runner.in_process import Runner


def depends_on_layout(
    runner: Runner, check: Check[Any, Any], example: Any, level: str = STRICT, shared: Any = None
) -> bool:
    """Ask once more, and with contiguous arrays: whether only the latter is right, which is a matter of ATT-13.

    Args:
        runner: of the subject.
        check: by which the example fails.
        example: as the check takes it.
        level: of what is wrong; what only higher profiles ask for does not count.
        shared: what the check has prepared, if it has; a layout changes nothing of it.

    Returns:
        whether the example fails again, but not with contiguous arrays; False where its arrays are contiguous.

    """
    if not has_layouts(example):
        return False
    prepared = check.prepare(example) if shared is None else shared

    def is_right(example: Any) -> bool:
        return not breaks(runner(check, example, prepared), level)

    return is_right(lay_contiguous(example)) and not is_right(example)


def lay_contiguous(example: Any) -> Any:
    """The example with all its cases in contiguous arrays."""
    return change_cases(example, lambda case: replace(case, memory={}))


def has_layouts(example: Any) -> bool:
    """Whether a case in the example has arrays that do not lie contiguous."""
    if isinstance(example, Case | Planted):
        return bool(asked_case(example).memory)
    return type(example) is tuple and any(map(has_layouts, example))
