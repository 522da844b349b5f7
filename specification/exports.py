"""What a package exports: all that its modules export."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType


def public_names(namespace: Mapping[str, object]) -> list[str]:
    """Return the names in a package's namespace that are neither private nor those of its modules, in order."""
    return sorted(
        name for name, value in namespace.items() if not (name.startswith("_") or isinstance(value, ModuleType))
    )
