"""Violations that only a memory layout causes: in contiguous arrays the subject answers the same numbers rightly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.expectations import Planted
from conformance.checks.check import Check
from conformance.checks.comparison import breaks
from conformance.checks.levels import STRICT
from conformance.runner.in_process import Runner

STRIDES = "strides are ignored: in contiguous arrays the same numbers are answered rightly"


def because_of_memory(runner: Runner, check: Check[Any, Any], material: Any, level: str = STRICT) -> bool:
    """Ask once more, and with contiguous arrays: whether the violation, of whatever rule, is one of ATT-13.

    Args:
        runner: of the subject.
        check: by which the material fails.
        material: as the check takes it.
        level: of what is wrong; what only higher profiles ask for does not count.

    Returns:
        whether the material fails again, but not with contiguous arrays; False where its arrays are contiguous.

    """
    if not has_layouts(material):
        return False

    def right(material: Any) -> bool:
        findings = runner(check, material, check.prepare(material))
        return not breaks(findings, level)

    return right(contiguous(material)) and not right(material)


def has_layouts(material: Any) -> bool:
    """Whether a case in the material has arrays that do not lie contiguous."""
    if isinstance(material, Planted):
        return has_layouts(material.planted)
    return bool(material.memory) if isinstance(material, Case) else any(map(has_layouts, parts(material)))


def contiguous(material: Any) -> Any:
    """The material with all its cases in contiguous arrays."""
    if isinstance(material, Case):
        return replace(material, memory={})
    if isinstance(material, Planted):
        return replace(material, clean=contiguous(material.clean), planted=contiguous(material.planted))
    return tuple(map(contiguous, material)) if parts(material) else material


def parts(material: Any) -> tuple[Any, ...]:
    """What a plain tuple holds, as of twins; nothing for all else."""
    return material if type(material) is tuple else ()
