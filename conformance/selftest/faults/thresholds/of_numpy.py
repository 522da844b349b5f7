"""Faults past a size in NumPy: narrow indices, tiles, chunks (ATT-8, MASK-1, NORM-1, EMB-1, POS-1, POS-2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.selftest.faults import right_layers, right_norms, right_numpy
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import planted
from conformance.selftest.faults.right_layers import embedding_by, sinusoidal_by
from conformance.selftest.faults.right_norms import LAYER, with_bias_by

# --- attention --------------------------------------------------------------------------------------------------------


def values_up_to(n: int) -> Callable[..., Any]:
    """Values past key n are not added up."""
    return lambda weights, value, allowed: right_numpy.weighted_sum(weights[..., :n], value[:, :, :n], allowed[..., :n])


def rows_of_chunk(n: int) -> Callable[..., Any]:
    """Queries are computed in chunks of n, each with the mask of the first."""

    def allowed(mask: Any, bias: Any, shape: tuple[int, ...]) -> Any:
        found = right_numpy.allowed_pairs(mask, bias, shape)
        return found[..., np.arange(shape[2]) % n, :]

    return allowed


def total_in_half(n: int) -> Callable[..., Any]:
    """Past n keys the total is that of every other key, twice."""

    def total(exponentials: Any, maximum: Any, sinks: Any) -> Any:
        if exponentials.shape[-1] <= n:
            return right_numpy.total(exponentials, maximum, sinks)
        doubled = np.zeros_like(exponentials)
        doubled[..., ::2] = 2 * exponentials[..., ::2]
        return right_numpy.total(doubled, maximum, sinks)

    return total


ATTENTION = (
    *(planted("ATT-8", f"values past key {n} not added up", weighted_sum=values_up_to(n)) for n in (512, 32768)),
    *(planted("MASK-1", f"mask of the first {n} queries for every {n}", allowed=rows_of_chunk(n)) for n in (64, 1024)),
    *(planted("ATT-5", f"every other key in the total past {n}", total=total_in_half(n)) for n in (256, 8192)),
)

# --- norms ------------------------------------------------------------------------------------------------------------


def whole_chunks(n: int) -> Callable[..., Any]:
    """Past n columns only whole chunks of n are in the variance."""

    def square(deviation: Any, x: Any, axes: tuple[int, ...]) -> Any:
        count = np.prod([x.shape[axis] for axis in axes])
        width = max(deviation.shape[-1] // n, 1) * n
        return (deviation[..., :width] ** 2).sum(axis=axes, keepdims=True) / x.dtype.type(count)

    return square


NORMS = tuple(
    Fault("NORM-1", f"last chunk of {n} columns not in the variance (numpy)", "layer_norm",
          with_bias_by(LAYER._replace(square=whole_chunks(n)), forward_only=True), right_norms.layer_norm_forward)
    for n in (512, 4096)
)  # fmt: skip

# --- lookups ----------------------------------------------------------------------------------------------------------


def narrow_ids(dtype: Any) -> Callable[..., Any]:
    return lambda table, ids, scaled: right_layers.taken(table, ids.astype(dtype).astype(int) % len(table), scaled)


def narrow_rows(table: Any, length: int, *, offset: int = 0) -> Any:
    """Rows are counted in 16 bits."""
    return table[(np.arange(length) + offset).astype(np.uint16) % len(table)]


def narrow_positions(dtype: Any) -> Callable[..., Any]:
    return lambda positions, width, exponent: right_layers.angles(
        positions[0] + np.arange(len(positions)).astype(dtype).astype(int) if len(positions) else positions,
        width, exponent,
    )  # fmt: skip


LOOKUPS = (
    *(
        Fault("EMB-1", f"ids in {np.dtype(dtype).name}", "embedding", embedding_by(narrow_ids(dtype)),
              right_layers.embedding)
        for dtype in (np.uint8, np.int16, np.uint16)
    ),
    Fault("POS-2", "rows counted in 16 bits", "learned_positions", narrow_rows, right_layers.learned_positions),
    *(
        Fault("POS-1", f"positions counted in {np.dtype(dtype).name}", "sinusoidal_positions",
              sinusoidal_by(narrow_positions(dtype), right_layers.interleaved), right_layers.sinusoidal_positions)
        for dtype in (np.uint8, np.int16, np.uint16)
    ),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (*ATTENTION, *NORMS, *LOOKUPS)
