"""Position encodings in PyTorch (POS-1, POS-2, POS-5, POS-6), as `reference_numpy/positions.py` defines them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Integer

from specification import checks
from specification.positions import alibi_slopes, angular_frequencies, bucket_edges
from torch_impl.dtypes import widen
from torch_impl.masks import readable

__all__ = ["alibi_bias", "learned_positions", "relative_position_bias", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int,
    width: int,
    *,
    offset: int | Integer[torch.Tensor, ""] = 0,
    exponent: str = "shared",
    dtype: str = "float32",
    device: torch.device | str | None = None,
) -> Float[torch.Tensor, "length width"]:
    """Compute PE[p, 2i] = sin(p / 10000^(2i/E)) and PE[p, 2i+1] = cos of the same angle (POS-1).

    Args:
        length: The number of positions p = offset, ..., offset + length - 1.
        width: E. An odd width drops the last cosine.
        offset: The first position.
        exponent: "shared", or, for a dialect, "doubled": column c then has an angle of its own, p / 10000^(2c/E).
        dtype: The name of a dtype, such as "float32".
        device: Where the result is put.

    Returns:
        A new array [length, width] in `dtype`, computed in float64 and rounded once.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.positions(length, width, offset, exponent, dtype)
    position = torch.arange(length, device=device) + offset
    angle = position[:, None] * torch.as_tensor(angular_frequencies(width, exponent), device=device)
    even = torch.arange(width, device=device) % 2 == 0
    return torch.where(even, torch.sin(angle), torch.cos(angle)).to(getattr(torch, dtype))


def learned_positions(
    table: Float[torch.Tensor, "N E"], length: int, *, offset: int | Integer[torch.Tensor, ""] = 0
) -> Float[torch.Tensor, "length E"]:
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
    if isinstance(offset, torch.Tensor) and (number := readable(offset)) is not None:
        offset = int(number)
    checks.learned_positions(table, length, offset)
    return table[offset : offset + length].clone()


def alibi_bias(
    num_heads: int,
    query_length: int,
    key_length: int,
    *,
    offset: int | Integer[torch.Tensor, ""] = 0,
    dtype: str = "float32",
    device: torch.device | str | None = None,
) -> Float[torch.Tensor, "1 H Q K"]:
    """Compute slope * (j - (i + offset)) for query i and key j, with a slope for each head (POS-5; ALiBi).

    Args:
        num_heads: H.
        query_length: Q.
        key_length: K.
        offset: The position of the first query.
        dtype: The name of a dtype, such as "float32".
        device: Where the result is put.

    Returns:
        A new array [1, H, Q, K] in `dtype`, a bias for `attention`, computed in float64 and rounded once. It is
        negative for keys before the query, and positive after it, where it is for a mask to say whether they count.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.alibi_bias(num_heads, query_length, key_length, offset, dtype)
    slopes = torch.as_tensor(alibi_slopes(num_heads), device=device)
    position = torch.arange(query_length, device=device) + offset
    distance = torch.arange(key_length, device=device) - position[:, None]
    return (slopes[:, None, None] * distance)[None].to(getattr(torch, dtype))


def relative_position_bias(
    table: Float[torch.Tensor, "N H"],
    query_length: int,
    key_length: int,
    *,
    bidirectional: bool,
    furthest: int = 128,
    offset: int | Integer[torch.Tensor, ""] = 0,
) -> Float[torch.Tensor, "1 H Q K"]:
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
    bucket = buckets_of(query_length, key_length, offset, table.shape[0], bidirectional, furthest, table.device)
    # The table is widened before its rows are taken, so that their gradients are added up in the wider dtype.
    rows = torch.nn.functional.embedding(bucket, widen(table))
    return torch.moveaxis(rows, -1, 0)[None].to(table.dtype)


def buckets_of(
    query_length: int,
    key_length: int,
    offset: int | Integer[torch.Tensor, ""],
    count: int,
    bidirectional: bool,
    furthest: int,
    device: torch.device,
) -> Integer[torch.Tensor, "Q K"]:
    """Of `count` buckets the one for every query and key: how many later ones' smallest distance is reached (POS-6)."""
    size = count // 2 if bidirectional else count
    edges = torch.tensor(bucket_edges(size, furthest), device=device)
    position = torch.arange(query_length, device=device) + offset
    relative = torch.arange(key_length, device=device) - position[:, None]
    distance = torch.abs(relative) if bidirectional else torch.clamp(-relative, min=0)
    bucket = torch.searchsorted(edges, distance, right=True)
    return bucket + size * (relative > 0) if bidirectional else bucket
