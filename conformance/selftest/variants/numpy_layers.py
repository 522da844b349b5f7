"""Layer norm and its variants in NumPy by Welford's updates, with gradients by hand; position encodings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.declaration import declare
from reference_numpy.dtypes import widen
from specification.dtypes import compute_dtype_name

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def welford(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sums of squared deviations [R, 1] of rows [R, n]: every element moves the mean."""
    mean, squares = x[:, :1].copy(), np.zeros_like(x[:, :1])
    for count in range(2, x.shape[1] + 1):
        element = x[:, count - 1 : count]
        distance = element - mean
        mean += distance / x.dtype.type(count)
        squares += distance * (element - mean)
    return mean, squares


def norm_by_welford(unbiased: bool, name: str) -> Callable[..., Any]:
    """`layer_norm`, or `standard_deviation_norm` if unbiased, with its gradients declared."""

    def statistics(x: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Deviations, the reciprocal of what they are divided by, and the spread without eps."""
        (mean, squares), n, kind = welford(x), x.shape[1], x.dtype.type
        if unbiased:
            spread = np.sqrt(squares / kind(n - 1))
            return x - mean, 1 / (spread + kind(eps)), spread
        return x - mean, 1 / np.sqrt(squares / kind(n) + kind(eps)), np.sqrt(squares / kind(n))

    @np.errstate(all="ignore")
    def vjp(
        x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, cotangent: np.ndarray, *, eps: float = 1e-5
    ) -> dict[str, Any]:
        deviation, reciprocal, spread = statistics(rows(x, weight), eps)
        output_bar = rows(cotangent, weight)
        inner, n = output_bar * widen(weight).reshape(-1), deviation.shape[1]
        normalized = deviation * reciprocal
        centered = inner - inner.mean(axis=1, keepdims=True)
        # What normalized rows are divided by: the deviation with eps, whose slope lacks eps where eps is added to it.
        slope = (centered * normalized).sum(axis=1, keepdims=True) / inner.dtype.type(n - unbiased)
        along = deviation / np.where(spread == 0, 1, spread) if unbiased else normalized
        found = {
            "x": (reciprocal * (centered - along * slope)).reshape(x.shape).astype(x.dtype),
            "weight": (output_bar * normalized).sum(axis=0).reshape(weight.shape).astype(weight.dtype),
        }
        if bias is not None:
            found["bias"] = output_bar.sum(axis=0).reshape(bias.shape).astype(bias.dtype)
        return found

    @declare(vjp=vjp)
    @np.errstate(all="ignore")
    def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> Any:
        deviation, reciprocal, _ = statistics(rows(x, weight), eps)
        output = deviation * reciprocal * widen(weight).reshape(-1)
        if bias is not None:
            output = output + widen(bias).reshape(-1)
        return output.reshape(x.shape).astype(x.dtype)

    norm.__qualname__ = norm.__name__ = name
    return norm


def rows(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[R, n] in the dtype of the arithmetic."""
    return widen(x).reshape(-1, weight.size)


layer_norm_welford = norm_by_welford(False, "layer_norm_welford")
standard_deviation_welford = norm_by_welford(True, "standard_deviation_welford")


def sinusoidal_in_compute_dtype(
    length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: DTypeLike = "float32"
) -> Any:
    """Frequencies as exp(-log(10000) * exponent), and angles as their product with the position."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    wide = np.dtype(compute_dtype_name(name)).type
    columns = np.arange(width)
    pairs = columns - columns % 2 if exponent == "shared" else 2 * columns
    frequencies = np.exp(-wide(math.log(10000.0)) * (pairs.astype(wide) / wide(width)))
    angles = (np.arange(length) + offset).astype(wide)[:, None] * frequencies
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles)).astype(dtype)
