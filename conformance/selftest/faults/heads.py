"""Heads, widths and lengths mixed up (ATT-7, ATT-8)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults import right_numpy as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.planting import planted
from conformance.selftest.faults.right_numpy import Function, attention


def tiled(array: Any, count: int) -> Any:
    """Query head h reads key head h mod G."""
    return np.tile(array, (1, count // max(array.shape[1], 1), 1, 1))


# --- grouped heads ----------------------------------------------------------------------------------------------------


def tiled_values(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """Keys repeated, values tiled."""
    return attention(query, key, tiled(value, query.shape[1]), mask=mask, bias=bias)


def neighbour(array: Any, count: int) -> Any:
    """The groups begin one query head too late."""
    group = count // max(array.shape[1], 1)
    return array[:, np.maximum(np.arange(count) - (group > 1), 0) // max(group, 1)]


def first_of_the_batch(array: Any, count: int) -> Any:
    """A single key head has the stride 0 in the batch too."""
    array = np.broadcast_to(array[:1], array.shape) if array.shape[1] == 1 else array
    return right.heads(array, count)


GROUPED = (
    planted("ATT-7", "heads tiled, not repeated", heads=tiled),
    Fault("ATT-7", "keys repeated, values tiled", "attention", tiled_values, attention),
    planted("ATT-7", "groups one head too late", heads=neighbour),
    planted("ATT-7", "one key head of the first batch element", heads=first_of_the_batch),
    planted("ATT-7", "the first key head for every group", heads=lambda array, count: array[:, [0] * count]),
)  # fmt: skip

# --- lengths and widths -----------------------------------------------------------------------------------------------


def first_keys(limit: int) -> Function:
    """Keys from `limit` on are left out."""
    return lambda mask, bias, shape: right.allowed_pairs(mask, bias, shape) & (np.arange(shape[-1]) < limit)


def full_tiles(width: int) -> Function:
    """Features beyond the last multiple of `width` are left out of the products, if there is a full tile."""

    def products(query: Any, key: Any, allowed: Any) -> Any:
        kept = query.shape[-1] // width * width or query.shape[-1]
        return right.products(query[..., :kept], key[..., :kept], allowed)

    return products


def widest(query: Any, key: Any, allowed: Any) -> Any:
    """The path for a width of 64 adds up only its first half."""
    half = slice(0, 32 if query.shape[-1] == 64 else None)
    return right.products(query[..., half], key[..., half], allowed)


def rows_repeated(output: Any, dtype: Any) -> Any:
    """Rows from 32 on are those of the first tile again."""
    rows = np.arange(output.shape[2])
    return output[:, :, np.where(rows < 32, rows, rows - 32)].astype(dtype)


def wide_values_cut(weights: Any, value: Any, allowed: Any) -> Any:
    """Features of the values beyond the keys' width are not written."""
    output = right.weighted_sum(weights, value, allowed)
    return np.where(np.arange(value.shape[-1]) < 8, output, 0).astype(output.dtype)


def decoding(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """One query is the last one, and sees everything."""
    return attention(query, key, value, mask=None if query.shape[2] == 1 else mask, bias=bias, scale=scale)


def decoding_scale(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None, softcap: Any = None
) -> Any:
    """The path for one query has no softcap."""
    return attention(query, key, value, mask=mask, scale=scale, softcap=None if query.shape[2] == 1 else softcap)


def no_keys(scores: Any, allowed: Any, sinks: Any) -> Any:
    """The maximum over no keys is an error."""
    np.max(scores, axis=-1)
    return right.maximum(scores, allowed, sinks)


def mean_of_nothing(weights: Any, value: Any, allowed: Any) -> Any:
    output = right.weighted_sum(weights, value, allowed)
    return output if value.shape[2] else np.full_like(output, np.nan)


def peeking(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The first batch element is looked at for its shape."""
    heads, queries, _ = query[0].shape
    return attention(query, key, value, mask=mask, bias=bias, scale=scale).reshape(-1, heads, queries, value.shape[-1])


SHAPES = (
    planted("ATT-8", "keys from 64 on left out", allowed=first_keys(64)),
    planted("ATT-8", "keys from 32 on left out", allowed=first_keys(32)),
    planted("ATT-8", "rows from 32 on taken from the start", rounded=rows_repeated),
    planted("ATT-8", "features beyond a multiple of 8 left out", products=full_tiles(8)),
    planted("ATT-8", "half of a width of 64", products=widest),
    planted("ATT-8", "values wider than 8 cut off", weighted_sum=wide_values_cut),
    Fault("ATT-8", "one query sees everything", "attention", decoding, attention),
    Fault("ATT-8", "one query has no softcap", "attention", decoding_scale, attention),
    planted("ATT-8", "no keys are an error", maximum=no_keys),
    planted("ATT-8", "no keys give NaN", weighted_sum=mean_of_nothing),
    Fault("ATT-8", "an empty batch is an error", "attention", peeking, attention),
)  # fmt: skip

FAULTS = (*GROUPED, *SHAPES)
