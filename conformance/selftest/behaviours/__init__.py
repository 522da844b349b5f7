"""Implementations that behave badly in ways that no prediction of results can say.

They keep state between calls, change their inputs, share or misread memory, race, answer bad input, return another
dtype, or misuse a framework. Known mistakes in the numbers are in `conformance.mistakes`; both are planted by
`conformance selftest`.
"""

from __future__ import annotations

import importlib
import importlib.util

from conformance.selftest.behaviours.behaviour import Behaviour

__all__ = ["Behaviour", "behaviours", "missing_frameworks"]

FILES = ("memory", "state", "results", "bad_input")
FRAMEWORKS = {"torch": ("layouts", "autograd", "ranks"), "jax": ("tracing",)}
"""Files whose behaviours need a framework."""


def missing_frameworks() -> list[str]:
    """Return the frameworks that are not installed; their behaviours are left out."""
    return [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]


def behaviours() -> tuple[Behaviour, ...]:
    """Return every behaviour that can be planted here, always in the same order."""
    missing = missing_frameworks()
    files = (*FILES, *(file for name, files in FRAMEWORKS.items() if name not in missing for file in files))
    modules = (importlib.import_module(f"conformance.selftest.behaviours.{file}") for file in files)
    return tuple(behaviour for module in modules for behaviour in module.BEHAVIOURS)
