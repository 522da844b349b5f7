"""Violations that only a memory layout causes: in contiguous arrays the subject answers the same numbers rightly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.expectations import Planted
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


def has_layouts(example: Any) -> bool:
    """Whether a case in the example has arrays that do not lie contiguous."""
    if isinstance(example, Planted):
        return has_layouts(example.planted)
    return bool(example.memory) if isinstance(example, Case) else any(map(has_layouts, list_parts(example)))


def lay_contiguous(example: Any) -> Any:
    """The example with all its cases in contiguous arrays."""
    if isinstance(example, Case):
        return replace(example, memory={})
    if isinstance(example, Planted):
        return replace(example, clean=lay_contiguous(example.clean), planted=lay_contiguous(example.planted))
    return tuple(map(lay_contiguous, example)) if list_parts(example) else example


def list_parts(example: Any) -> tuple[Any, ...]:
    """What a plain tuple holds, as of twins; nothing for all else."""
    return example if type(example) is tuple else ()
