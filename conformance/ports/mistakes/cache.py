"""Mistakes of decoding with a cache, which leave the whole pass right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.ports.computation import Computation, Step
from conformance.ports.mistakes.attention import (
    LAYER,
    MASK,
    PARAMETERS,
    ROTATION,
    attend_otherwise,
    attend_with,
    complete,
    widen_window,
)
from conformance.ports.mistakes.masks import map_masks
from conformance.ports.mistakes.mistake import ModelMistake
from reference_numpy import attention, blocks, materialize
from reference_numpy.attention_steps import softmax
from specification.masks import Causal, Dense
from specification.parameters import LatentAttention


def restart_positions(late: int) -> Callable[[Computation], Computation]:
    """Positions of each part begin at 0, or `late` too early after the first part."""
    return count_otherwise(lambda chunks: [
        0 if not late else max(start - late * (start > 0), 0) for start in np.cumsum((0, *chunks))[:-1]
    ])  # fmt: skip


def count_otherwise(begin: Callable[[tuple[int, ...]], list[int]]) -> Callable[[Computation], Computation]:
    """Positions of each part begin elsewhere. begin: from the lengths of the parts to their first positions."""

    def change(computation: Computation) -> Computation:
        starts = begin(computation.chunks)
        parts = [np.arange(length) + start for start, length in zip(starts, computation.chunks, strict=True)]
        positions = np.concatenate(parts) if parts else None

        def rewrite(step: Step) -> Step:
            if positions is None:
                return step
            if step.kind == "learned_positions":
                return step._replace(function=lambda table, *_, **__: table[positions])
            if step.kind == "attend":
                return turn_by(step, positions)
            return step

        return computation.rewrite(rewrite)

    return change


def turn_by(step: Step, positions: np.ndarray) -> Step:
    """Rotate queries and keys by other positions."""
    step = complete(step)
    rotation = step.arguments[ROTATION]
    if rotation is None:
        return step
    return step.argument(ROTATION, rotation._replace(
        sine=rotation.sine[..., positions, :], cosine=rotation.cosine[..., positions, :]))  # fmt: skip


def forget_cache(computation: Computation, most: int = 0) -> Computation:
    """Tokens attend to those of their own part, and of so many before it, alone."""
    part = np.repeat(np.arange(len(computation.chunks)), computation.chunks)

    def rewrite(step: Step) -> Step:
        if step.kind != "attend" or not len(part):
            return step
        mask = step.arguments[MASK]
        same = Dense(part[:, None] - part[None, :] <= most)
        return step.argument(MASK, same if mask is None else mask & same)

    return computation.rewrite(rewrite)


def keep_last_part(computation: Computation) -> Computation:
    """The cache holds the last part alone, and positions begin at its length."""
    counted = count_otherwise(lambda chunks: [0, *chunks][: len(chunks)])
    return counted(forget_cache(computation, 1))


VisibleKeys = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From the positions of tokens [T, 1] and keys [1, T], where the part of each token begins [T, 1], and where it ends,
to the keys that each token sees [T, T]."""


def locate_parts(computation: Computation) -> tuple[np.ndarray, ...]:
    """Return what `VisibleKeys` takes."""
    lengths = np.array(computation.chunks, int)
    end = np.repeat(np.cumsum(lengths), lengths)[:, None]
    start = end - np.repeat(lengths, lengths)[:, None]
    return np.arange(len(end))[:, None], np.arange(len(end))[None, :], start, end


def mask_parts(see: VisibleKeys, replaces_window_end: bool = False) -> Callable[[Computation], Computation]:
    """The causal mask of a part with a cache before it is another.

    replaces_window_end: whether layers with a window have this mask in place of the window's right end. A token that
    then sees no key gives all keys that are there the same weight, as with a large number in place of -inf.
    """

    def change(computation: Computation) -> Computation:
        token, key, start, end = locate_parts(computation)
        seen = Dense(see(token, key, start, end) & (key < end))

        def rewrite(step: Step) -> Step:
            if step.kind != "attend" or not len(end):
                return step
            step = complete(step).argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: seen))
            if not replaces_window_end or step.arguments[LAYER].window is None:
                return step
            return attend_with(attention=partial(attend_or_spread, key < end))(widen_window(0, len(end))(step))

        return computation.rewrite(rewrite)

    return change


def put_new_first(computation: Computation) -> Computation:
    """Keys stand in the order of parts from the last to the first, and masks count their places."""
    token, key, start, end = locate_parts(computation)
    place = (end - end.T) + key - start.T

    def rewrite(step: Step) -> Step:
        if step.kind != "attend" or not len(end):
            return step
        step = complete(step)
        window = step.arguments[LAYER].window
        seen = (place <= token) & (key < end) & (token - place <= (len(end) if window is None else window[0]))
        step = step.argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: Dense(seen)))
        return step.argument(LAYER, replace(step.arguments[LAYER], window=None))

    return computation.rewrite(rewrite)


def attend_or_spread(
    existing_keys: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: Any = None,
    **options: Any,
) -> Any:
    """Attend; a row without allowed keys gives all existing ones the same score."""
    B, H, Q, _ = query.shape
    allowed = materialize(mask, Q, key.shape[2], batch=B, heads=H)
    is_empty = ~allowed.any(axis=-1, keepdims=True)
    pairs = np.where(is_empty, existing_keys, allowed)
    return attention(np.where(is_empty, 0, query), key, value, mask=pairs, **options)


def see_from_first(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return key <= token - start


def see_padded(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return (key <= token - start) | (key >= end - start)


def see_whole_part(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return (key <= token) | (start > 0)


OtherKeys = Callable[[Step, Any, Any], tuple[Any, Any]]
"""From a step of attention, its keys and its values to those that the cache holds."""


def cache_others(make_cache: Callable[[], OtherKeys]) -> Callable[[Computation], Computation]:
    """Keys and values of earlier parts are others. make_cache: for one run of the model."""

    def change(computation: Computation) -> Computation:
        *_, start, _ = locate_parts(computation)
        is_own, length = start == start.T, len(start)
        find_cached = make_cache()

        def rewrite(step: Step) -> Step:
            if step.kind != "attend" or not length or isinstance(step.arguments[PARAMETERS], LatentAttention):
                return step

            def project_keys(*arguments: Any) -> tuple[Any, Any]:
                own = blocks.project_keys(*arguments)
                return tuple(map(join_keys, own, find_cached(step, *own)))  # type: ignore[return-value]

            def attend_to_both(query: Any, key: Any, value: Any, *, mask: Any = None, **options: Any) -> Any:
                allowed = materialize(mask, length, length, batch=len(query), heads=query.shape[1])
                pairs = np.concatenate([allowed & is_own, allowed & ~is_own], axis=-1)
                return attention(query, key, value, mask=pairs, **options)

            return attend_with(project_keys=project_keys, attention=attend_to_both)(step)

        return computation.rewrite(rewrite)

    return change


def join_keys(own: np.ndarray, cached: np.ndarray) -> np.ndarray:
    return np.concatenate([own, cached], axis=2)


def cache_before_rotation() -> OtherKeys:
    def find(step: Step, keys: np.ndarray, values: np.ndarray) -> tuple[Any, Any]:
        parameters, _, memory, _, _, configuration, *_ = step.arguments
        return blocks.project_keys(parameters, memory, configuration)[0], values

    return find


def cache_in_first_layer() -> OtherKeys:
    names: list[str] = []
    first_layer: list[tuple[Any, Any]] = []

    def find(step: Step, keys: np.ndarray, values: np.ndarray) -> tuple[Any, Any]:
        names[:] = names or [step.name]
        if step.name == names[0]:
            first_layer[:] = [(keys, values)]
        return first_layer[0] if first_layer[0][0].shape == keys.shape else (keys, values)

    return find


CountPlaces = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From the positions of tokens [T], and where the part of each ends [T], to the empty places that each sees [T]."""


def see_empty_places(count: CountPlaces, is_next_seen: bool = False) -> Callable[[Computation], Computation]:
    """Tokens attend to places of the cache that hold no key yet: to zeros.

    is_next_seen: whether they see the next token of their part too.
    """

    def change(computation: Computation) -> Computation:
        token, _, _, end = locate_parts(computation)
        empty = count(token[:, 0], end[:, 0])

        def weigh(scores: np.ndarray, allowed: np.ndarray) -> Any:
            column = (*scores.shape[:-1], 1)
            # n keys of score 0 weigh as much as one of score log(n).
            beside = np.broadcast_to(np.log(np.maximum(empty, 1))[:, None], column)
            there = np.broadcast_to(empty[:, None] > 0, column)
            pairs = np.concatenate([allowed, there], axis=-1)
            return softmax(np.concatenate([scores, beside], axis=-1), pairs)[0][..., :-1]

        def rewrite(step: Step) -> Step:
            return attend_otherwise(weigh)(step) if step.kind == "attend" and len(empty) else step

        if is_next_seen:
            computation = mask_parts(lambda token, key, start, end: key <= token + 1)(computation)
        return computation.rewrite(rewrite)

    return change


def count_empty(capacity: int, token: np.ndarray, end: np.ndarray) -> Any:
    return np.maximum(capacity - end, 0)


CAPACITIES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Places of caches that are made before the first token."""
MISTAKES = (
    ModelMistake(
        "cache.next-place",
        "GEN-1",
        "with a cache, the place after a token is seen, whether a token stands there or nothing yet",
        see_empty_places(lambda token, end: (token + 1 == end).astype(int), is_next_seen=True),
    ),
    *(
        ModelMistake(
            f"cache.empty-places-{capacity}",
            "GEN-1",
            f"the empty ones of a cache's {capacity} places are seen",
            see_empty_places(partial(count_empty, capacity)),
        )
        for capacity in CAPACITIES
    ),
    ModelMistake("cache.positions-restart", "GEN-1", "with a cache, positions begin at 0 again", restart_positions(0)),
    ModelMistake("cache.positions-late", "GEN-1", "with a cache, positions are one too small", restart_positions(1)),
    ModelMistake("cache.not-read", "GEN-1", "what the cache holds is not attended to", forget_cache),
    ModelMistake(
        "cache.last-part", "GEN-1", "the cache holds the keys and values of the last part alone", keep_last_part
    ),
    ModelMistake(
        "cache.before-rotation",
        "POS-3",
        "the cache holds keys before their rotation",
        cache_others(cache_before_rotation),
    ),
    ModelMistake("cache.new-first", "GEN-1", "new keys stand before those of the cache", put_new_first),
    ModelMistake(
        "cache.of-first-layer", "GEN-1", "all layers read the cache of the first", cache_others(cache_in_first_layer)
    ),
    *(
        ModelMistake(
            f"cache.{name}{'-in-windows' * replaces_window_end}",
            "GEN-1",
            f"with a cache, {says}{', in windows too' * replaces_window_end}",
            mask_parts(see, replaces_window_end),
        )
        for replaces_window_end in (False, True)
        for name, says, see in (
            ("mask-from-first", "the causal mask begins at the first key, in place of the part's", see_from_first),
            (
                "mask-padded-behind",
                "the part's causal mask stands at the first keys, and all keys after it are visible",
                see_padded,
            ),
            ("causal-strict", "a token does not see itself", lambda token, key, start, end: key < token),
            ("not-causal", "later tokens of a part are visible", see_whole_part),
        )
    ),
)
"""Causal masks have two variants: a port may combine the mask with a window, or end both at one wrong position."""
