"""The dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from specification.dtypes import compute_dtype_name, dtype_name


def widen(array: Float[np.ndarray, "..."] | None) -> Any:
    """The array in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a np.ndarray, got {type(array).__name__}")
    return array.astype(compute_dtype_name(dtype_name(array)))
