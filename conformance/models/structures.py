"""Parameter structures, and tuples of them, taken array by array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """The structure of the first, with `function` of the arrays that stand in the same place; None stays."""
    if first is None:
        return None
    if isinstance(first, list | tuple):
        parts = [mapped(function, *same) for same in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(first, *others)
