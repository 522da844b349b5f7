"""What is installed: versions that a report tells."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("numpy", "torch", "jax", "hypothesis", "transformer-conformance")


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that count, and of more, as installed."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
