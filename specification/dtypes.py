"""Dtypes by name, so that one rule serves NumPy, PyTorch and JAX (ATT-9, NORM-2)."""

from __future__ import annotations

from specification.arrays import Array

FLOATING = ("float16", "bfloat16", "float32", "float64")
HALF = ("float16", "bfloat16")
INTEGER = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BOOLEAN = ("bool",)
NAMES = frozenset(FLOATING + INTEGER + BOOLEAN)
LARGEST = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
SMALLEST_EPS = 2.0**-126
"""The smallest normal float32: an eps below it would vanish in float32 and leave 0 / 0 for a constant row."""


def dtype_name(array: Array) -> str:
    """Name the dtype of an array: "float32" for np.float32, torch.float32 and jnp.float32 alike."""
    dtype = array.dtype
    # NumPy takes ten times as long for `str(dtype)` as for the name of its scalars, which tells no byte order.
    scalar = dtype.type.__name__ if getattr(dtype, "isnative", False) else ""
    return scalar if scalar in NAMES else str(dtype).removeprefix("torch.")


def compute_dtype_name(name: str) -> str:
    """Name the dtype in which scores, statistics and sums are kept: float64 for itself, float32 for others (ATT-9)."""
    return "float64" if name == "float64" else "float32"
