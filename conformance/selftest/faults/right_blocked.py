"""Right attention in tiles of keys with online softmax, as fused kernels compute it, in steps that can be replaced.

Every query keeps a running maximum m, a running total l and a running sum o of weighted values. A tile with scores S
and values V gives

    m' = max(m, max S)        factor = exp(m - m')
    l' = factor * l + sum exp(S - m')
    o' = factor * o + exp(S - m') . V

and at the end output = o / l. A tile in which no pair is allowed is skipped. float32 inside; no float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults.right_numpy import (
    Function,
    allowed_pairs,
    heads,
    products,
    resolved_scale,
    rounded,
    scores,
    weighted_sum,
    widen,
)

DTYPES = ("float32", "bfloat16", "float16")
TILE = 16


class Running(NamedTuple):
    """What a query knows after some tiles: [B, H, Q, 1] twice, and [B, H, Q, V]. The maximum is -inf at first."""

    maximum: Any
    total: Any
    output: Any


# --- the steps --------------------------------------------------------------------------------------------------------


def tiles(keys: int) -> Iterator[slice]:
    """Consecutive slices of TILE keys; the last one may be shorter."""
    return (slice(start, min(start + TILE, keys)) for start in range(0, keys, TILE))


def skipped(allowed: Any, tile: slice) -> bool:
    """Whether no query of any head may attend to any key of the tile; `allowed` is [B, H, Q, K]."""
    return not allowed[..., tile].any()


def started(shape: tuple[int, ...], width: int, sinks: Any) -> Running:
    """Nothing seen yet; sinks come last."""
    return Running(np.full((*shape, 1), -np.inf, np.float32), np.zeros((*shape, 1), np.float32),
                   np.zeros((*shape, width), np.float32))  # fmt: skip


def new_maximum(maximum: Any, scores: Any, allowed: Any) -> Any:
    """The largest allowed score so far."""
    return np.maximum(maximum, np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True))


def exponentials(scores: Any, maximum: Any, allowed: Any) -> Any:
    """exp(scores - maximum), 0 where forbidden."""
    return np.where(allowed, np.exp(np.where(allowed, scores - maximum, 0)), 0)


def factor(old: Any, new: Any) -> Any:
    """exp(old - new), by which what was summed up is rescaled; 0 where nothing was seen before."""
    return np.exp(np.where(old == -np.inf, -np.inf, old - new))


def grown_total(running: Running, factor: Any, exponentials: Any) -> Any:
    return factor * running.total + exponentials.sum(axis=-1, keepdims=True)


def grown_output(running: Running, factor: Any, exponentials: Any, value: Any, allowed: Any) -> Any:
    return factor * running.output + weighted_sum(exponentials, value, allowed)


def with_sinks(running: Running, sinks: Any) -> Running:
    """The sink's term in the denominator; it has no value."""
    if sinks is None:
        return running
    sinks = sinks[:, None, None]
    maximum = np.maximum(running.maximum, sinks)
    maximum = np.where(maximum == -np.inf, 0, maximum)  # nothing seen, and a sink of -inf
    factor = np.exp(running.maximum - maximum)
    return Running(maximum, factor * running.total + np.exp(sinks - maximum), factor * running.output)


def finished(running: Running) -> Any:
    """o / l; 0 where nothing was allowed."""
    return running.output / np.where(running.total == 0, 1, running.total)


class Steps(NamedTuple):
    """Every step under the name by which a fault replaces it."""

    allowed: Function = allowed_pairs
    heads: Function = heads
    tiles: Function = tiles
    skipped: Function = skipped
    scale: Function = resolved_scale
    products: Function = products
    scores: Function = scores
    started: Function = started
    maximum: Function = new_maximum
    exponentials: Function = exponentials
    factor: Function = factor
    total: Function = grown_total
    output: Function = grown_output
    with_sinks: Function = with_sinks
    finished: Function = finished
    rounded: Function = rounded


# --- the operation ----------------------------------------------------------------------------------------------------


def after(s: Steps, running: Running, scores: Any, value: Any, allowed: Any) -> Running:
    """One tile further."""
    maximum = s.maximum(running.maximum, scores, allowed)
    # A query that has seen nothing has the maximum -inf, and -inf - -inf would be NaN.
    finite = np.where(maximum == -np.inf, 0, maximum)
    exponentials, factor = s.exponentials(scores, finite, allowed), s.factor(running.maximum, finite)
    total = s.total(running, factor, exponentials)
    return Running(maximum, total, s.output(running, factor, exponentials, value, allowed))


def blocked_by(s: Steps) -> Function:
    """`attention` in these steps."""

    @declare(dtypes=DTYPES)
    @np.errstate(all="ignore")
    def attention(
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> Any:
        if query.dtype == np.float64:
            raise TypeError("this kernel takes no float64")
        (B, H, Q, _), K = query.shape, key.shape[2]
        dtype, number = query.dtype, s.scale(scale, query, value)
        query, key, value = widen(query), s.heads(widen(key), H), s.heads(widen(value), H)
        bias, sinks = widen(bias), widen(sinks)
        allowed = s.allowed(mask, bias, (B, H, Q, K))
        running = s.started((B, H, Q), value.shape[-1], sinks)
        for tile in s.tiles(K):
            if s.skipped(allowed, tile):
                continue
            pairs, part = allowed[..., tile], None if bias is None else bias[..., tile]
            scores = s.scores(s.products(query, key[:, :, tile], pairs), number, softcap, part, pairs)
            running = after(s, running, scores, value[:, :, tile], pairs)
        return s.rounded(s.finished(s.with_sinks(running, sinks)), dtype)

    return attention


RIGHT = Steps()
attention = blocked_by(RIGHT)
