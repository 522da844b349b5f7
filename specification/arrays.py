"""What the arrays of NumPy, PyTorch and JAX have in common, and all that is asked of them here."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard


class Array(Protocol):
    """An array of any framework, also while it is traced."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def is_array(value: object) -> TypeGuard[Array]:
    """Tell whether a value has the shape and the dtype of an array."""
    return hasattr(value, "shape") and hasattr(value, "dtype")
