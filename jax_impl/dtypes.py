"""The dtype in which everything is computed, float32 or float64 for float64 (ATT-9), and what would narrow it.

NumPy arrays are taken too, and results are always JAX arrays. float64 needs `jax.enable_x64`: without it JAX would
narrow it to float32 silently, so it is a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, Shaped

from specification.dtypes import compute_dtype_name, dtype_name

P = ParamSpec("P")
R = TypeVar("R")

HIGHEST = jax.lax.Precision.HIGHEST
"""Every product asks for it: by default JAX multiplies float32 as TF32 on GPUs and as bfloat16 on TPUs."""


def widen(array: Float[jax.Array, "..."] | None) -> Any:
    """The array in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    wide = compute_dtype_name(dtype_name(array))
    require_dtype(wide)
    return cast(array, wide)


def cast(array: Shaped[jax.Array, "..."], dtype: DTypeLike) -> Shaped[jax.Array, "..."]:
    """The array in that dtype; itself if it has it, where jax.vjp outside jax.jit would copy it, and its gradient."""
    if isinstance(array, jax.Array) and array.dtype == dtype and not array.weak_type:
        return array
    return jnp.asarray(array, dtype)


def require_dtype(name: str) -> None:
    """Refuse float64 and other dtypes of 64 bits where JAX would silently give 32 instead."""
    if jax.dtypes.canonicalize_dtype(name) != name:
        raise TypeError(f"{name} needs jax.enable_x64, without which JAX narrows it")


def compile_with(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """jax.jit with these arguments as constants, as a decorator that keeps the type of the function."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return jax.jit(function, static_argnames=static)

    return decorate


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """jax.jit of a function of arrays, which takes whatever `jnp.asarray` takes, and refuses what would be narrowed."""
    inner = jax.jit(function)

    def given(array: Any) -> Any:
        if isinstance(array, jax.Array):
            return array
        if hasattr(array, "dtype"):
            require_dtype(dtype_name(array))
        return jnp.asarray(array)

    @wraps(function)
    def outer(*arrays: P.args, **more: P.kwargs) -> R:
        return inner(*jax.tree.map(given, arrays), **jax.tree.map(given, more))

    return outer
