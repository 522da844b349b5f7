"""Position encodings in NumPy with everything in the dtype of the arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specification.dtypes import compute_dtype_name


def sinusoidal_in_compute_dtype(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: Any = "float32"
) -> Any:
    """Frequencies as exp(-log(10000) * exponent), and angles as their product with the position."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    wide = np.dtype(compute_dtype_name(name)).type
    columns = np.arange(width)
    pairs = columns - columns % 2 if exponent == "shared" else 2 * columns
    frequencies = np.exp(-wide(math.log(10000.0)) * (pairs.astype(wide) / wide(width)))
    angles = (np.arange(length) + offset).astype(wide)[:, None] * frequencies
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(dtype)
