"""What is installed: versions that a report tells."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress

PACKAGES = ("numpy", "torch", "jax", "hypothesis", "transformer-conformance")


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that count, and of more, as installed."""
    return {"python": platform.python_version()} | installed(*PACKAGES, *more)


def installed(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
