"""Inside `jax.shard_map`: arrays that may differ from device to device, which their types say and JAX checks.

What a loop starts from must have the type of what it ends with. An array that is the same on all devices varies once
it is cast; the gradient of that cast is the sum over devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

# `pcast` and `manual_axis_type` are names of newer JAX, `pvary` and `vma` those of 0.8.
PCAST: Any = getattr(lax, "pcast", None)
PVARY: Any = getattr(lax, "pvary", None)


def axes_of(*trees: Any) -> tuple[str, ...]:
    """The axes of the mesh along which any array in these differs from device to device; none outside."""
    found: set[str] = set()
    for leaf in jax.tree.leaves(trees):
        kind = jax.typeof(leaf)
        manual = getattr(kind, "manual_axis_type", None)
        found |= getattr(kind, "vma", frozenset()) if manual is None else manual.varying
    return tuple(sorted(found))


def vary(tree: Any, axes: tuple[str, ...]) -> Any:
    """The same arrays, as ones that may differ along these axes."""

    def cast(array: Any) -> Any:
        missing = tuple(axis for axis in axes if axis not in axes_of(array))
        if not missing:
            return array
        return PVARY(array, missing) if PCAST is None else PCAST(array, missing, to="varying")

    return jax.tree.map(cast, tree)
