"""A boolean mask as a description that allows the same pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.declaration import Declaration, Window
from conformance.cases.features import list_unsupported
from reference_numpy import materialize
from specification import Causal, Dense, KeyLengths, KeyPadding, SlidingWindow
from specification.masks import And

if TYPE_CHECKING:
    from specification.masks import Mask

BY_KEYS = (And, KeyLengths, KeyPadding)


def describe_mask(mask: Mask | None, query_length: int, key_length: int) -> Any:
    """The mask with arrays of NumPy; None for one that allows every pair, and a causal mask or window as such."""
    if mask is None or isinstance(mask, Causal | SlidingWindow):
        return mask
    return description(materialize(mask, query_length, key_length), lambda found: not isinstance(found, BY_KEYS))


def plainest_description(
    declaration: Declaration, mask: Mask | None, batch: int, query_length: int, key_length: int
) -> Any:
    """The mask as the plainest that a subject takes, or the plainest of all."""

    def is_supported(part: Mask | None) -> bool:
        return not any(list_unsupported(part, query_length, key_length, declaration))

    allowed = materialize(mask, query_length, key_length)
    allowed = np.array(np.broadcast_to(allowed, (batch, *allowed.shape[1:])))
    return description(allowed, is_supported, declaration.windows)


def description(allowed: np.ndarray, taken: Callable[[Any], bool], windows: tuple[Window, ...] = ()) -> Any:
    """Return the plainest mask that is taken, among those that allow exactly these pairs; of all if none is taken.

    Args:
        allowed: [B, H or 1, Q, K].
        taken: whether a mask may be chosen.
        windows: to be tried beside those that the array shows: a window past all its edges shows none.
    """
    for accepted in (taken, anything):
        for mask in candidates(allowed, windows):
            if accepted(mask) and means(mask, allowed):
                return mask
    raise AssertionError("an array means itself")


def anything(mask: Mask | None) -> bool:
    return True


def means(mask: Mask | None, allowed: np.ndarray) -> bool:
    """Whether a mask allows exactly these pairs."""
    return bool((materialize(mask, *allowed.shape[2:]) == allowed).all())


def candidates(allowed: np.ndarray, windows: tuple[Window, ...]) -> Iterator[Any]:
    """Masks that may allow these pairs: bands, bands with padded keys, and the array itself."""
    bands = [None, *bands_of(allowed, windows)]
    yield from bands
    for keys_of in (key_lengths, key_padding):
        for band in bands:
            keys = keys_of(allowed, band)
            yield keys if band is None else And(band, keys)
    yield Dense(allowed)


def bands_of(allowed: np.ndarray, windows: tuple[Window, ...]) -> Iterator[Causal | SlidingWindow]:
    """The causal masks and windows that fit at the last key and at the first one."""
    queries, keys = allowed.shape[2:]
    for offset in dict.fromkeys((keys - queries, 0)):
        distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
        seen = np.broadcast_to(distance, allowed.shape)[allowed]
        left, right = -int(seen.min(initial=0)), int(seen.max(initial=0))
        yield Causal(offset)
        yield SlidingWindow(None, 0, offset)
        yield SlidingWindow(left, right if right < distance.max() else None, offset)
        yield from (SlidingWindow(*window, offset) for window in windows)


def find_seen_keys(allowed: np.ndarray, band: Mask | None) -> tuple[np.ndarray, np.ndarray]:
    """Keys that some query sees, [B, K], and those that one could see by the band alone, [K]."""
    return np.any(allowed, axis=(1, 2)), np.any(materialize(band, *allowed.shape[2:]), axis=(0, 1, 2))


def key_lengths(allowed: np.ndarray, band: Mask | None) -> KeyLengths:
    """Each sequence up to the last key that is seen; all keys where padding hides none."""
    seen, visible = find_seen_keys(allowed, band)
    K = len(visible)
    last = np.where(seen.any(axis=1), K - seen[:, ::-1].argmax(axis=1), 0)
    return KeyLengths(np.where((seen == visible).all(axis=1), K, last))


def key_padding(allowed: np.ndarray, band: Mask | None) -> KeyPadding:
    """The keys that are seen, and those that nothing shows."""
    seen, visible = find_seen_keys(allowed, band)
    return KeyPadding(seen | ~visible)
