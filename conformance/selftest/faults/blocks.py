"""Tiles and online softmax gone wrong: tails, rescaling, running maxima, skipped tiles. Most need many keys to show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.selftest.faults import right_blocked as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_blocked import DTYPES, RIGHT, TILE, Running, attention, blocked_by
from conformance.selftest.faults.right_numpy import Function, weighted_sum


def planted(rule: str, name: str, **steps: Function) -> Fault:
    return Fault(rule, name, "attention", blocked_by(RIGHT._replace(**steps)), attention)


# --- tiles ------------------------------------------------------------------------------------------------------------


def whole_tiles(keys: int) -> Iterator[slice]:
    """The tail is left out, unless it is all there is."""
    return (slice(start, start + TILE) for start in range(0, max(keys - TILE, 0) + 1, TILE))


def tail_twice(keys: int) -> Iterator[slice]:
    """A tail as long as a tile is taken once as a tile and once as a tail."""
    yield from right.tiles(keys)
    if keys and keys % TILE == 0:
        yield slice(keys - TILE, keys)


def tail_moved_back(keys: int) -> Iterator[slice]:
    """The last tile is moved back to be full, and its first keys count twice."""
    starts = range(0, keys, TILE)
    return (slice(min(start, max(keys - TILE, 0)), min(start + TILE, keys)) for start in starts)


def four_tiles(keys: int) -> Iterator[slice]:
    """At most 64 keys, the size of the table of tiles."""
    return (tile for tile in right.tiles(keys) if tile.start < 4 * TILE)


def padded(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Any:
    """The tail is filled up with keys and values of 0, which are masked only where there is a mask."""
    missing = -key.shape[2] % TILE
    key, value = (np.pad(array, ((0, 0), (0, 0), (0, missing), (0, 0))) for array in (key, value))
    columns: Any = ((0, 0), (0, missing))
    if mask is not None:
        mask = np.pad(mask, columns if mask.ndim == 2 else ((0, 0), (0, 0), *columns))
    if bias is not None:
        bias = np.pad(bias, columns if bias.ndim == 2 else ((0, 0), (0, 0), *columns))
    return attention(query, key, value, mask=mask, bias=bias, scale=scale)


def skipped_by_element_0(allowed: Any, tile: slice) -> bool:
    return not allowed[:1, :1, :, tile].any()


def skipped_by_last_query(allowed: Any, tile: slice) -> bool:
    """As a causal mask would allow."""
    return not allowed[:, :, -1:, tile].any()


def skipped_by_first_key(allowed: Any, tile: slice) -> bool:
    return not allowed[..., tile.start].any()


def skipped_if_any_is_forbidden_later(allowed: Any, tile: slice) -> bool:
    """Once a tile has nothing for the first query, it counts as the end."""
    return tile.start > 0 and not allowed[:, :, :1, tile].any()


TILES = (
    planted("ATT-8", "tail of the keys left out", tiles=whole_tiles),
    planted("ATT-8", "a full tail taken twice", tiles=tail_twice),
    planted("ATT-8", "tail moved back into the tile before", tiles=tail_moved_back),
    planted("ATT-8", "four tiles at most", tiles=four_tiles),
    Fault("ATT-8", "tail filled up with zeros that count", "attention", padded, attention, given={"dtypes": DTYPES}),
    planted("MASK-2", "tiles skipped by batch element and head 0", skipped=skipped_by_element_0),
    planted("MASK-4", "tiles skipped by the last query", skipped=skipped_by_last_query),
    planted("MASK-2", "tiles skipped by their first key", skipped=skipped_by_first_key),
    planted("MASK-3", "tiles skipped by the first query", skipped=skipped_if_any_is_forbidden_later),
)  # fmt: skip

# --- online softmax ---------------------------------------------------------------------------------------------------


def this_tiles_maximum(maximum: Any, scores: Any, allowed: Any) -> Any:
    """What came before is not looked at."""
    return right.new_maximum(np.full_like(maximum, -np.inf), scores, allowed)


def maximum_of_every_pair(maximum: Any, scores: Any, allowed: Any) -> Any:
    """Forbidden scores, which are 0 here, too."""
    return right.new_maximum(maximum, scores, np.ones_like(allowed))


def unguarded_factor(old: Any, new: Any) -> Any:
    """exp(-inf - -inf): NaN after a tile that is forbidden altogether, for a query that sees a later one."""
    return np.exp(old - np.where(new == 0, old, new))


def inverse(old: Any, new: Any) -> Any:
    return np.where(old == -np.inf, 0, 1 / right.factor(old, new))


def by_base_2(old: Any, new: Any) -> Any:
    return right.factor(old, new) ** np.float32(np.log(2))


def output_as_it_was(running: Running, factor: Any, exponentials: Any, value: Any, allowed: Any) -> Any:
    """The sum is not rescaled."""
    return running.output + weighted_sum(exponentials, value, allowed)


def total_as_it_was(running: Running, factor: Any, exponentials: Any) -> Any:
    return running.total + exponentials.sum(axis=-1, keepdims=True)


def rescaled_by_whole_steps(old: Any, new: Any) -> Any:
    """Rescaled only where the maximum has grown by more than 8, without correcting what is added."""
    return np.where(new - old > 8, right.factor(old, new), np.where(old == -np.inf, 0, 1))


def normalized_every_time(running: Running, factor: Any, exponentials: Any, value: Any, allowed: Any) -> Any:
    """The sum is divided by the tile's own total."""
    total = exponentials.sum(-1, keepdims=True)
    return factor * running.output + weighted_sum(exponentials, value, allowed) / np.where(total == 0, 1, total)


def half_sum(running: Running, factor: Any, exponentials: Any, value: Any, allowed: Any) -> Any:
    """The running sum is kept in float16."""
    output = right.grown_output(running, factor, exponentials, value, allowed)
    return output.astype(np.float16).astype(np.float32)


def started_at_0(shape: tuple[int, ...], width: int, sinks: Any) -> Running:
    """A running maximum that begins at 0, and so never falls below it."""
    running = right.started(shape, width, sinks)
    return running._replace(maximum=np.zeros_like(running.maximum))


def started_at_the_sink(shape: tuple[int, ...], width: int, sinks: Any) -> Running:
    """The sink as the first score, which the end then counts again."""
    running = right.started(shape, width, sinks)
    if sinks is None:
        return running
    maximum = np.broadcast_to(np.asarray(sinks, np.float32)[:, None, None], running.maximum.shape).copy()
    return running._replace(maximum=maximum, total=np.exp(np.where(maximum == -np.inf, -np.inf, 0)))


def sink_against_0(running: Running, sinks: Any) -> Running:
    """exp(sink) in place of exp(sink - maximum)."""
    if sinks is None:
        return running
    return running._replace(total=running.total + np.exp(sinks[:, None, None]))


def unguarded_sinks(running: Running, sinks: Any) -> Running:
    """-inf - -inf where nothing was seen and the sink is -inf."""
    if sinks is None:
        return running
    maximum = np.maximum(running.maximum, sinks[:, None, None])
    factor = np.exp(running.maximum - maximum)
    return Running(maximum, factor * running.total + np.exp(sinks[:, None, None] - maximum), factor * running.output)


def empty_by_element_0(running: Running) -> Any:
    """Rows are empty where the first batch element has empty ones."""
    total = np.where(running.total[:1] == 0, 0, running.total)
    return np.where(total == 0, 0, running.output / np.where(total == 0, 1, total))


ONLINE = (
    planted("ATT-8", "maximum of the last tile only", maximum=this_tiles_maximum),
    planted("ATT-4", "maximum of forbidden scores of 0 too", maximum=maximum_of_every_pair),
    planted("MASK-4", "NaN after a forbidden tile", factor=unguarded_factor, skipped=lambda allowed, tile: False),
    planted("ATT-8", "rescaled the wrong way", factor=inverse),
    planted("ATT-8", "rescaled by base 2", factor=by_base_2),
    planted("ATT-8", "sum not rescaled", output=output_as_it_was),
    planted("ATT-8", "total not rescaled", total=total_as_it_was),
    planted("ATT-8", "rescaled by large steps only", factor=rescaled_by_whole_steps),
    planted("ATT-8", "every tile normalised by itself", output=normalized_every_time),
    planted("ATT-9", "running sum in float16", output=half_sum),
    planted("ATT-4", "running maximum from 0 on", started=started_at_0),
    planted("ATT-5", "sink counted at both ends", started=started_at_the_sink),
    planted("ATT-5", "sink not shifted by the maximum", with_sinks=sink_against_0),
    planted("ATT-5", "a sink of -inf against no score", with_sinks=unguarded_sinks),
    planted("ATT-6", "rows empty where batch element 0 has them", finished=empty_by_element_0),
)  # fmt: skip

FAULTS = (*TILES, *ONLINE)
