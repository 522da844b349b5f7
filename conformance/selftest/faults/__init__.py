"""Planted faults: wrong implementations, each with the rule that must catch it, and the right ones they are made from.

A fault is one step of a right implementation replaced by a wrong one that somebody could have written. They test the
judge: `conformance selftest` holds that each is caught by its own rule, and that what it was made from conforms.
"""

from __future__ import annotations

import importlib
import importlib.util

from conformance.selftest.faults.fault import Fault

__all__ = ["Fault", "absent", "planted"]

FILES = (
    *("masks", "scores", "masking", "softmax", "empty_rows", "companions", "heads", "blocks", "dtypes"),
    *("special_values", "gradients", "memory", "norms", "norm_variants", "layers", "lookups", "rotary"),
    *("losses", "optimizers", "bad_input"),
    "thresholds.of_numpy",
)
PAST_A_SIZE = ("keys", "masks", "heads", "gradients", "companions", "norms", "layers", "numbers", "layouts", "state")
FRAMEWORKS = {
    "torch": ("of_torch", *(f"thresholds.{file}" for file in PAST_A_SIZE)),
    "jax": ("of_jax", "thresholds.of_jax"),
}
"""Files whose faults need a framework."""


def absent() -> list[str]:
    """Frameworks that are not installed; their faults are left out."""
    return [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]


def planted() -> tuple[Fault, ...]:
    """Every fault that can be planted here, always in the same order."""
    needing = (file for name, files in FRAMEWORKS.items() if name not in absent() for file in files)
    files = (*FILES, *needing)
    return tuple(
        fault for file in files for fault in importlib.import_module(f"conformance.selftest.faults.{file}").FAULTS
    )
