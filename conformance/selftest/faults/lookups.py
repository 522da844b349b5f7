"""Position encodings and embedding gone wrong (POS-1, POS-2, EMB-1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.faults import right_layers as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_layers import (
    embedding_by,
    sinusoidal_by,
)
from conformance.selftest.faults.right_numpy import Function, widen


def positions(name: str, angles: Function = right.angles, columns: Function = right.interleaved) -> Fault:
    return Fault("POS-1", name, "sinusoidal_positions", sinusoidal_by(angles, columns), right.sinusoidal_positions)


def halves(angles: Any) -> Any:
    """All sines, then all cosines."""
    even, odd = np.sin(angles[:, ::2]), np.cos(angles[:, 1::2])
    return np.concatenate([even, odd], axis=1)


def swapped(angles: Any) -> Any:
    return np.where(np.arange(angles.shape[1]) % 2 == 0, np.cos(angles), np.sin(angles))


def by_less(positions: Any, width: int, exponent: str) -> Any:
    """2i / (E - 2), so that the last pair has the exponent 1."""
    column = np.arange(width)
    power = column if exponent == "doubled" else column // 2
    return positions[:, None] * 10000.0 ** (-2.0 * power / max(width - 2, 1))


def half_positions(positions: Any, width: int, exponent: str) -> Any:
    return right.angles(positions.astype(np.float16), width, exponent)


def one_on(positions: Any, width: int, exponent: str) -> Any:
    return right.angles(positions + 1, width, exponent)


def from_0(positions: Any, width: int, exponent: str) -> Any:
    """The offset is ignored."""
    return right.angles(np.arange(len(positions)), width, exponent)


def shared_always(positions: Any, width: int, exponent: str) -> Any:
    return right.angles(positions, width, "shared")


def turned(angles: Any) -> Any:
    """Every angle larger by 2^-18 of itself, as by a base that was rounded."""
    return right.interleaved(np.float32(angles) * (1 + np.float32(2.0**-18)))


def up_to_10000(positions: Any, width: int, exponent: str) -> Any:
    """A table of 10000 rows whose last one is read again."""
    return right.angles(np.minimum(positions, 9_999), width, exponent)


def clamped(table: Any, length: int, *, offset: int = 0) -> Any:
    """A window as long as the table begins at its start."""
    return table[max(offset - 1, 0) :][:length].copy() if offset else table[:length].copy()


def offset_ignored(table: Any, length: int, *, offset: int = 0) -> Any:
    return table[:length].copy()


def scaled_in_its_dtype(table: Any, ids: Any, scaled: bool) -> Any:
    """The root is rounded to the table's dtype."""
    rows = table[ids]
    return widen(rows) * widen(np.array(math.sqrt(table.shape[1])).astype(table.dtype)) if scaled else rows


def scaled_by_width(table: Any, ids: Any, scaled: bool) -> Any:
    return widen(table[ids]) * (table.shape[1] if scaled else 1)


def scaled_always(table: Any, ids: Any, scaled: bool) -> Any:
    return right.taken(table, ids, True)


def counted_once(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> Any:
    """The last occurrence of an id overwrites the others."""
    gradient = np.zeros(table.shape, widen(table).dtype)
    gradient[ids.reshape(-1)] = widen(cotangent).reshape(-1, table.shape[1])
    return (gradient * (math.sqrt(table.shape[1]) if scaled else 1)).astype(table.dtype)


def not_scaled_back(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> Any:
    return right.embedding_vjp(table, ids, cotangent)


def added_in_its_dtype(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> Any:
    """Occurrences are added up in the table's dtype."""
    gradient = np.zeros_like(table)
    root = math.sqrt(table.shape[1]) if scaled else 1
    for row, bar in zip(ids.reshape(-1), widen(cotangent).reshape(-1, table.shape[1]), strict=True):
        gradient[row] = (widen(gradient[row]) + bar * root).astype(table.dtype)
    return gradient


def embedding(name: str, rows: Function = right.taken, table_bar: Function = right.embedding_vjp) -> Fault:
    return Fault("EMB-1", name, "embedding", embedding_by(rows, table_bar), right.embedding)


FAULTS = (
    positions("sines and cosines in halves", columns=halves),
    positions("sine and cosine swapped", columns=swapped),
    positions("exponent by E - 2", angles=by_less),
    positions("positions in float16", angles=half_positions),
    positions("positions from 1 on", angles=one_on),
    positions("offset ignored", angles=from_0),
    positions("one exponent for both readings", angles=shared_always),
    positions("angles off by 2^-18", columns=turned),
    positions("a table of 10000 positions", angles=up_to_10000),
    Fault("POS-2", "one row too early", "learned_positions", clamped, right.learned_positions),
    Fault("POS-2", "offset ignored", "learned_positions", offset_ignored, right.learned_positions),
    embedding("scaled by the width", scaled_by_width),
    embedding("scaled unasked", scaled_always),
    embedding("root in the table's dtype", scaled_in_its_dtype),
    embedding("repeated ids counted once", table_bar=counted_once),
    embedding("gradient not scaled", table_bar=not_scaled_back),
    embedding("repeated ids added up in the table's dtype", table_bar=added_in_its_dtype),
)  # fmt: skip
