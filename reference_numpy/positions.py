"""Position encodings, added to x or to scores, defined (rules POS-1, POS-2, POS-5, POS-6)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Integer

from reference_numpy.tape import operation
from specification import checks
from specification.positions import alibi_slopes, angular_frequencies, bucket_edges

__all__ = ["alibi_bias", "learned_positions", "relative_position_bias", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int,
    width: int,
    *,
    offset: int | Integer[np.ndarray, ""] = 0,
    exponent: str = "shared",
    dtype: str = "float32",
) -> Float[np.ndarray, "length width"]:
    """Compute PE[p, 2i] = sin(p / 10000^(2i/E)) and PE[p, 2i+1] = cos of the same angle (POS-1).

    Args:
        length: The number of positions p = offset, ..., offset + length - 1.
        width: E. An odd width drops the last cosine.
        offset: The first position.
        exponent: "shared", or, for a dialect, "doubled": column c then has an angle of its own, p / 10000^(2c/E).
        dtype: The name of a dtype, such as "float32".

    Returns:
        A new array [length, width] in `dtype`, computed in float64 and rounded once.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.positions(length, width, offset, exponent, dtype)
    position = np.arange(length) + offset
    angle = position[:, None] * angular_frequencies(width, exponent)
    even = np.arange(width) % 2 == 0
    return np.where(even, np.sin(angle), np.cos(angle)).astype(dtype)


@operation
def learned_positions(
    table: Float[np.ndarray, "N E"], length: int, *, offset: int | Integer[np.ndarray, ""] = 0
) -> Float[np.ndarray, "length E"]:
    """Take rows offset, ..., offset + length - 1 of the table (POS-2).

    Args:
        table: [N, E].
        length: How many rows.
        offset: The first row.

    Returns:
        A new array [length, E] in the dtype of table.

    Raises:
        ValueError: Rows past the end of the table.
    """
    checks.learned_positions(table, length, offset)
    return table[offset : offset + length].copy()


@np.errstate(over="ignore")  # -inf in float16, far away
def alibi_bias(
    num_heads: int,
    query_length: int,
    key_length: int,
    *,
    offset: int | Integer[np.ndarray, ""] = 0,
    dtype: str = "float32",
) -> Float[np.ndarray, "1 H Q K"]:
    """Compute slope * (j - (i + offset)) for query i and key j, with a slope for each head (POS-5; ALiBi).

    Args:
        num_heads: H.
        query_length: Q.
        key_length: K.
        offset: The position of the first query.
        dtype: The name of a dtype, such as "float32".

    Returns:
        A new array [1, H, Q, K] in `dtype`, a bias for `attention`, computed in float64 and rounded once. It is
        negative for keys before the query, and positive after it, where it is for a mask to say whether they count.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.alibi_bias(num_heads, query_length, key_length, offset, dtype)
    slopes = alibi_slopes(num_heads)
    position = np.arange(query_length) + offset
    distance = np.arange(key_length) - position[:, None]
    return (slopes[:, None, None] * distance)[None].astype(dtype)


@operation
def relative_position_bias(
    table: Float[np.ndarray, "N H"],
    query_length: int,
    key_length: int,
    *,
    bidirectional: bool,
    furthest: int = 128,
    offset: int | Integer[np.ndarray, ""] = 0,
) -> Float[np.ndarray, "1 H Q K"]:
    """Take the bias of every query and key from a table, by the bucket of their distance (POS-6; Raffel et al., T5).

    A query i stands at position i + offset. Of the buckets of a direction, half hold one distance each, the others a
    range that grows with the distance.

    Args:
        table: [N, H], a row for every bucket, in float16, bfloat16, float32 or float64.
        query_length: Q.
        key_length: K.
        bidirectional: Whether keys after the query have buckets of their own, the second half of the table. Otherwise
            they share the bucket of distance 0, and all buckets are for keys before it.
        furthest: The distance from which on all keys share the last bucket.
        offset: The position of the first query.

    Returns:
        A new array [1, H, Q, K] in the dtype of table, a bias for `attention`.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.relative_position_bias(table, query_length, key_length, bidirectional, furthest, offset)
    bucket = buckets_of(query_length, key_length, offset, table.shape[0], bidirectional, furthest)
    rows = np.take(table, bucket, axis=0)
    return np.moveaxis(rows, -1, 0)[None]


def buckets_of(
    query_length: int,
    key_length: int,
    offset: int | Integer[np.ndarray, ""],
    count: int,
    bidirectional: bool,
    furthest: int,
) -> Integer[np.ndarray, "Q K"]:
    """Of `count` buckets the one for every query and key: how many later ones' smallest distance is reached (POS-6)."""
    size = count // 2 if bidirectional else count
    edges = bucket_edges(size, furthest)
    position = np.arange(query_length) + offset
    relative = np.arange(key_length) - position[:, None]
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    bucket = np.searchsorted(edges, distance, side="right")
    return bucket + size * (relative > 0) if bidirectional else bucket
