"""Position encodings, biases by distance and embedding gone wrong (POS-1, POS-2, POS-5, POS-6, EMB-1)."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from conformance.selftest.faults import right_layers as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_layers import (
    alibi_by,
    embedding_by,
    relative_bias_by,
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


# --- biases by distance -----------------------------------------------------------------------------------------------


def alibi(name: str, **steps: Function) -> Fault:
    return Fault("POS-5", name, "alibi_bias", alibi_by(**steps), right.alibi_bias)


def relative_bias(name: str, **steps: Function) -> Fault:
    return Fault("POS-6", name, "relative_position_bias", relative_bias_by(**steps), right.relative_position_bias)


def in_a_row(num_heads: int) -> Any:
    """2^(-8h / H), whatever H is."""
    return 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)


def next_power(num_heads: int) -> Any:
    """The first slopes of the next larger power of two."""
    power = 2 ** math.ceil(math.log2(num_heads))
    return right.slopes(power)[:num_heads]


def narrow_slopes(num_heads: int) -> Any:
    return right.slopes(num_heads).astype(ml_dtypes.bfloat16).astype(np.float32)


def from_the_first(query_length: int, key_length: int, offset: int) -> Any:
    """The offset is ignored."""
    return right.relative(query_length, key_length, 0)


def one_more(query_length: int, key_length: int, offset: int) -> Any:
    """Keys count from 0, queries from 1."""
    return right.relative(query_length, key_length, offset + 1)


def turned_round(query_length: int, key_length: int, offset: int) -> Any:
    return -right.relative(query_length, key_length, offset)


def on_both_sides(query_length: int, key_length: int, offset: int) -> Any:
    return -np.abs(right.relative(query_length, key_length, offset))


def by_logarithm(dtype: Any) -> Function:
    """The logarithm of a distance in this dtype, as libraries take it."""

    def bucket(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
        size = rows // 2 if bidirectional else rows
        n, e = np.abs(relative) if bidirectional else np.maximum(-relative, 0), size // 2
        share = np.log(np.maximum(n, 1).astype(dtype) / dtype(e)) / dtype(math.log(furthest / e))
        late = np.minimum(e + (share * dtype(size - e)).astype(int), size - 1)
        return np.where(n < e, n, late) + (size * (relative > 0) if bidirectional else 0)

    return bucket


def other_half(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
    """Keys before the query have the second half of the table."""
    found, size = right.bucket(relative, rows, bidirectional, furthest), rows // 2
    return np.where(found < size, found + size, found - size) if bidirectional and rows % 2 == 0 else found


def furthest_of_t5(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
    return right.bucket(relative, rows, bidirectional, max(128, rows))


def one_direction(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
    return right.bucket(relative, rows, False, max(furthest, rows))


def last_kept_free(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
    """Only distances beyond the furthest have the last bucket."""
    size = rows // 2 if bidirectional else rows
    found = right.bucket(relative, rows, bidirectional, furthest)
    return np.where((found % size == size - 1) & (np.abs(relative) <= furthest), np.maximum(found - 1, 0), found)


def heads_by_rows(rows: Any) -> Any:
    """[Q, K, H] read as [H, Q, K]."""
    return rows.reshape(1, rows.shape[2], *rows.shape[:2]).copy()


def pairs_turned(rows: Any) -> Any:
    """[H, K, Q] where it fits."""
    found = right.by_heads(rows)
    return found.swapaxes(2, 3).copy() if rows.shape[0] == rows.shape[1] else found


def bar_counted_once(table: Any, query_length: int, key_length: int, cotangent: Any, **options: Any) -> Any:
    """The last pair of a bucket overwrites the others."""
    places = right.bucket(
        right.relative(query_length, key_length, options.get("offset", 0)),
        len(table), options["bidirectional"], options.get("furthest", 128),
    )  # fmt: skip
    gradient = np.zeros_like(table)
    gradient[places] = np.moveaxis(cotangent[0], 0, -1)
    return gradient


def bar_in_its_dtype(table: Any, query_length: int, key_length: int, cotangent: Any, **options: Any) -> Any:
    """Pairs are added up in the table's dtype."""
    places = right.bucket(
        right.relative(query_length, key_length, options.get("offset", 0)),
        len(table), options["bidirectional"], options.get("furthest", 128),
    )  # fmt: skip
    gradient = np.zeros_like(table)
    for row, bar in zip(places.reshape(-1), np.moveaxis(cotangent[0], 0, -1).reshape(-1, table.shape[1]), strict=True):
        gradient[row] = (widen(gradient[row]) + widen(bar)).astype(table.dtype)
    return gradient


BIASES = (
    alibi("slopes in a row for any number of heads", slopes=in_a_row),
    alibi("slopes of the next larger power of two", slopes=next_power),
    alibi("slopes in bfloat16", slopes=narrow_slopes),
    alibi("slopes from 1 on", slopes=lambda heads: right.slopes(heads) / right.slopes(heads)[0]),
    alibi("offset ignored", relative=from_the_first),
    alibi("distance off by one", relative=one_more),
    alibi("sign of the distance", relative=turned_round),
    alibi("falling on both sides", relative=on_both_sides),
    relative_bias("logarithms in float32", bucket=by_logarithm(np.float32)),
    relative_bias("logarithms in float64", bucket=by_logarithm(np.float64)),
    relative_bias("halves of the table swapped", bucket=other_half),
    relative_bias("furthest distance ignored", bucket=furthest_of_t5),
    relative_bias("always one direction", bucket=one_direction),
    relative_bias("last bucket for what is beyond the furthest only", bucket=last_kept_free),
    relative_bias("offset ignored", relative=from_the_first),
    relative_bias("distance off by one", relative=one_more),
    relative_bias("sign of the distance", relative=turned_round),
    relative_bias("heads read by rows", by_heads=heads_by_rows),
    relative_bias("queries and keys exchanged in a square", by_heads=pairs_turned),
    relative_bias("pairs of a bucket counted once", table_bar=bar_counted_once),
    relative_bias("pairs of a bucket added up in the table's dtype", table_bar=bar_in_its_dtype),
)  # fmt: skip


FAULTS = (
    *BIASES,
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
