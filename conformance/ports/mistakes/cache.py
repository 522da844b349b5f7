"""Mistakes of decoding with a cache, which leave the whole pass right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
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
from conformance.ports.mistakes.mistake import ModelMistake, StepChange
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

    def forget(step: Step) -> Step:
        mask = step.arguments[MASK]
        same = Dense(part[:, None] - part[None, :] <= most)
        return step.argument(MASK, same if mask is None else mask & same)

    return change_attention(computation, forget)


def change_attention(computation: Computation, change: StepChange) -> Computation:
    """Change every attention of a sequence that is decoded in parts."""
    if not sum(computation.chunks):
        return computation
    return computation.rewrite(lambda step: change(step) if step.kind == "attend" else step)


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

        def replace_mask(step: Step) -> Step:
            step = complete(step).argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: seen))
            if not replaces_window_end or step.arguments[LAYER].window is None:
                return step
            return attend_with(attention=partial(attend_or_spread, key < end))(widen_window(0, len(end))(step))

        return change_attention(computation, replace_mask)

    return change


def put_new_first(computation: Computation) -> Computation:
    """Keys stand in the order of parts from the last to the first, and masks count their places."""
    token, key, start, end = locate_parts(computation)
    place = (end - end.T) + key - start.T

    def count_places(step: Step) -> Step:
        step = complete(step)
        window = step.arguments[LAYER].window
        seen = (place <= token) & (key < end) & (token - place <= (len(end) if window is None else window[0]))
        step = step.argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: Dense(seen)))
        return step.argument(LAYER, replace(step.arguments[LAYER], window=None))

    return change_attention(computation, count_places)


def attend_or_spread(
    existing_keys: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: Any = None,
    **options: Any,
) -> Any:
    """Attend; a row without allowed keys gives all existing ones the same score, but where a sink takes it whole."""
    B, H, Q, _ = query.shape
    allowed = materialize(mask, Q, key.shape[2], batch=B, heads=H)
    is_empty = ~allowed.any(axis=-1, keepdims=True) & (options.get("sinks") is None)
    pairs = np.where(is_empty, existing_keys, allowed)
    return attention(np.where(is_empty, 0, query), key, value, mask=pairs, **options)


def see_from_first(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return key <= token - start


def see_padded(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return (key <= token - start) | (key >= end - start)


def see_whole_part(token: np.ndarray, key: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return (key <= token) | (start > 0)


KeyVersions = Callable[[Step, Any, Any], Iterable[tuple[Any, Any]]]
"""From a step of attention, its keys and its values to those that tokens of the same part see, of the next part, and so
on; the last ones are for all parts after."""


def cache_others(make_cache: Callable[[], KeyVersions]) -> Callable[[Computation], Computation]:
    """Keys and values of earlier parts are others. make_cache: for one run of the model."""

    def change(computation: Computation) -> Computation:
        part = np.repeat(np.arange(len(computation.chunks)), computation.chunks)
        age, length = part[:, None] - part, len(part)
        list_versions = make_cache()

        def replace_keys(step: Step) -> Step:
            if isinstance(step.arguments[PARAMETERS], LatentAttention):
                return step

            def project_keys(*arguments: Any) -> tuple[Any, Any]:
                versions = islice(list_versions(step, *blocks.project_keys(*arguments)), len(computation.chunks))
                keys, values = zip(*versions, strict=True)
                return np.concatenate(keys, axis=2), np.concatenate(values, axis=2)

            def attend_by_age(query: Any, key: Any, value: Any, *, mask: Any = None, **options: Any) -> Any:
                allowed = materialize(mask, length, length, batch=len(query), heads=query.shape[1])
                count = key.shape[2] // length
                pairs = [allowed & (np.clip(age, 0, count - 1) == version) for version in range(count)]
                return attention(query, key, value, mask=np.concatenate(pairs, axis=-1), **options)

            return attend_with(project_keys=project_keys, attention=attend_by_age)(step)

        return change_attention(computation, replace_keys)

    return change


def cache_before_rotation() -> KeyVersions:
    def list_versions(step: Step, keys: np.ndarray, values: np.ndarray) -> list[tuple[Any, Any]]:
        parameters, _, memory, _, _, configuration, *_ = step.arguments
        return [(keys, values), (blocks.project_keys(parameters, memory, configuration)[0], values)]

    return list_versions


def cache_in_first_layer() -> KeyVersions:
    names: list[str] = []
    first_layer: list[tuple[Any, Any]] = []

    def list_versions(step: Step, keys: np.ndarray, values: np.ndarray) -> list[tuple[Any, Any]]:
        names[:] = names or [step.name]
        if step.name == names[0]:
            first_layer[:] = [(keys, values)]
        return [(keys, values), first_layer[0] if first_layer[0][0].shape == keys.shape else (keys, values)]

    return list_versions


def rotate_read_keys(fewest: int, most: int | None) -> KeyVersions:
    """Keys are rotated once more in every part, so often at least and at most."""

    def rotate_on(step: Step, keys: np.ndarray, values: np.ndarray) -> Iterator[tuple[Any, Any]]:
        layer, rotation = (complete(step).arguments[index] for index in (LAYER, ROTATION))
        while True:
            yield keys, values
            keys = keys if rotation is None else blocks.rotated(keys, layer, rotation)

    def list_versions(*arguments: Any) -> Iterator[tuple[Any, Any]]:
        return islice(rotate_on(*arguments), fewest, None if most is None else most + 1)

    return list_versions


# --- caches of layers with windows ------------------------------------------------------------------------------------

FirstKey = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""From where the part of each token begins [T, 1], where it ends, and the keys of a window to the first key that the
cache holds [T, 1]; negative for all of them."""
VisiblePlaces = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]
"""To the keys that each token sees [T, T]. It is given the positions of tokens [T, 1], the places of keys in the cache
[T, T], the first key that it holds [T, 1], and how many keys a window has."""


def trim_cache(find_first: FirstKey, see: VisiblePlaces) -> Callable[[Computation], Computation]:
    """In layers with windows the cache holds the last keys alone, and the mask is another."""

    def change(computation: Computation) -> Computation:
        token, key, start, end = locate_parts(computation)

        def trim(step: Step) -> Step:
            step = complete(step)
            layer = step.arguments[LAYER]
            if layer.window is None:
                return step
            width = layer.window[0] + 1
            first = np.maximum(find_first(start, end, width), 0)
            existing = (key >= first) & (key < end)
            seen = Dense(existing & see(token, key - first, first, width))
            step = step.argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: seen))
            step = step.argument(LAYER, replace(layer, window=None))
            return attend_with(attention=partial(attend_or_spread, existing))(step)

        return change_attention(computation, trim)

    return change


def count_trimmed(
    find_first: FirstKey, is_everywhere: bool, is_masked: bool = False
) -> Callable[[Computation], Computation]:
    """Positions of a part begin at the length of the cache, which is trimmed in layers with windows.

    Args:
        find_first: the first key that the cache holds.
        is_everywhere: whether all layers count as the first with a window does; else each such layer by itself.
        is_masked: whether causal masks of layers without windows count so too.
    """

    def change(computation: Computation) -> Computation:
        token, key, start, end = locate_parts(computation)
        layers = computation.configuration.attention_layers
        widths = [layer.window[0] + 1 for layer in layers if layer.window is not None]
        if not widths:
            return computation

        def count_places(step: Step) -> Step:
            window = complete(step).arguments[LAYER].window
            if window is None and not is_everywhere:
                return step
            width = widths[0] if is_everywhere else window[0] + 1
            positions = token - np.maximum(find_first(start, end, width), 0)
            step = complete(turn_by(step, positions[:, 0]))
            if not is_masked or window is not None:
                return step
            return step.argument(MASK, map_masks(step.arguments[MASK], Causal, lambda _: Dense(key <= positions)))

        return change_attention(computation, count_places)

    return change


def see_places(token: np.ndarray, place: np.ndarray, first: np.ndarray, width: int) -> np.ndarray:
    return (place <= token) & (place > token - width)


def see_causal_places(token: np.ndarray, place: np.ndarray, first: np.ndarray, width: int) -> np.ndarray:
    return place <= token


def see_window(token: np.ndarray, place: np.ndarray, first: np.ndarray, width: int) -> np.ndarray:
    return see_places(token - first, place, first, width)


def keep_window(start: np.ndarray, end: np.ndarray, width: int) -> np.ndarray:
    return start - width


def keep_past(start: np.ndarray, end: np.ndarray, width: int) -> np.ndarray:
    return start - width + 1


def keep_new(start: np.ndarray, end: np.ndarray, width: int) -> np.ndarray:
    return end - width


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

        if is_next_seen:
            computation = mask_parts(lambda token, key, start, end: key <= token + 1)(computation)
        return change_attention(computation, attend_otherwise(weigh))

    return change


def count_empty(capacity: int, token: np.ndarray, end: np.ndarray) -> Any:
    return np.maximum(capacity - end, 0)


TRIMMED: tuple[tuple[str, str, FirstKey], ...] = (
    ("window", "as many keys as the window", keep_window),
    ("past", "one key less than the window", keep_past),
    ("new", "as many keys as the window, those of the part among them", keep_new),
)
"""What a cache holds that is trimmed to a window: name, sentence, function."""
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
    *(
        ModelMistake(f"cache.{name}", "POS-3", says, cache_others(partial(rotate_read_keys, fewest, most)))
        for name, says, fewest, most in (
            ("rotated-again", "the cache holds rotated keys, which are rotated again when they are read", 0, 1),
            ("rotated-each-part", "the cache holds rotated keys, which are rotated again in every later part", 0, None),
            ("all-rotated-again", "with a cache, all keys are rotated, stored, and rotated again", 1, 1),
        )
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
    ModelMistake(
        "cache.trimmed-early",
        "GEN-1",
        "a cache is trimmed to the window before a part of several tokens attends to it",
        trim_cache(keep_new, see_window),
    ),
    *(
        ModelMistake(
            f"cache.{name}-trimmed-to-{trim}",
            "GEN-1",
            f"of a cache that has {kept}, the mask takes places for positions{more}",
            trim_cache(find_first, see),
        )
        for trim, kept, find_first in TRIMMED
        for name, more, see in (
            ("mask", "", see_places),
            ("causal-mask", ", and knows no window", see_causal_places),
        )
    ),
    *(
        ModelMistake(
            f"cache.{name}-trimmed-to-{trim}",
            "GEN-1",
            f"positions begin at the length of a cache that has {kept}, in {where}",
            count_trimmed(find_first, is_everywhere, is_masked),
        )
        for trim, kept, find_first in TRIMMED[:2]  # before the part is there
        for name, where, is_everywhere, is_masked in (
            ("positions", "layers with windows", False, False),
            ("all-positions", "all layers", True, False),
            ("positions-and-masks", "all layers and their masks", True, True),
        )
    ),
)
"""Causal masks have two variants: a port may combine the mask with a window, or end both at one wrong position."""
