"""Mistakes of masks: padding, the causal mask, what rows without keys get, and rows that see one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.ports.computation import Step
from conformance.ports.mistakes.attention import (
    LAYER,
    MASK,
    MEMORY,
    QUERY,
    TOPIC,
    attend_otherwise,
    attend_with,
    complete,
)
from conformance.ports.mistakes.mistake import StepChange, StepMistake
from reference_numpy import materialize
from reference_numpy.attention_steps import attention_scores, repeat_heads, softmax
from specification.blocks import windowed
from specification.masks import And, Causal, Dense, KeyPadding, Mask, SlidingWindow

MaskChange = Callable[[Any], Any]
"""From a mask, which may be None, to another."""


def change_mask(change: MaskChange) -> StepChange:
    return lambda step: step.argument(MASK, change(step.arguments[MASK]))


def drop_masks(mask: Any, kind: type) -> Any:
    """Return the mask without parts of that kind."""
    if isinstance(mask, And):
        left, right = drop_masks(mask.left, kind), drop_masks(mask.right, kind)
        return right if left is None else left if right is None else And(left, right)
    return None if isinstance(mask, kind) else mask


def has_mask(mask: Any, kind: type) -> bool:
    if isinstance(mask, And):
        return has_mask(mask.left, kind) or has_mask(mask.right, kind)
    return isinstance(mask, kind)


def map_masks(mask: Any, kind: type, change: MaskChange) -> Any:
    if isinstance(mask, And):
        return And(map_masks(mask.left, kind, change), map_masks(mask.right, kind, change))
    return change(mask) if isinstance(mask, kind) else mask


def change_padding(change: MaskChange) -> StepChange:
    return change_mask(lambda mask: map_masks(mask, KeyPadding, change))


def change_causal(change: MaskChange) -> StepChange:
    return change_mask(lambda mask: map_masks(mask, Causal, change))


def add_causal(mask: Any) -> Any:
    if mask is None:
        return Causal(0)
    return (mask if isinstance(mask, Mask) else Dense(mask)) & Causal(0)


def invert_padding(mask: KeyPadding) -> KeyPadding:
    return KeyPadding(~np.asarray(mask.keep))


def keep_one_element(mask: KeyPadding) -> KeyPadding:
    """Every sequence has the padding of the first."""
    keep = np.asarray(mask.keep)
    return KeyPadding(np.broadcast_to(keep[:1], keep.shape))


def pad_queries(mask: KeyPadding) -> Dense:
    """Padding hides queries in place of keys."""
    keep = np.asarray(mask.keep)
    return Dense(np.broadcast_to(keep[:, None, :, None], (len(keep), 1, keep.shape[1], keep.shape[1])))


def invert_mask(step: Step) -> Step:
    """What is allowed is forbidden, and what is forbidden is allowed."""
    step = complete(step)
    query, memory, layer = step.arguments[QUERY], step.arguments[MEMORY], step.arguments[LAYER]
    mask = windowed(step.arguments[MASK], layer)
    if mask is None:
        return step
    allowed = materialize(mask, query.shape[1], memory.shape[1], batch=len(query), heads=1)
    return step.argument(MASK, Dense(~allowed)).argument(LAYER, replace(layer, window=None))


def drop_padding(mask: Any) -> Any:
    return drop_masks(mask, KeyPadding)


# --- rows without keys ------------------------------------------------------------------------------------------------


def attend_where_empty(change: StepChange, rest: MaskChange, even: bool) -> StepChange:
    """Rows that a wrong mask leaves without keys attend to what the rest of it allows.

    So it is where forbidden scores are lowered by a finite number, which all keys of such a row have in common.

    Args:
        change: makes the mask wrong.
        rest: from the right mask to what is forbidden in another way, as by a second, larger number.
        even: whether all weights are the same, as where the number swallows the scores; else scores decide.
    """

    def changed(step: Step) -> Step:
        step = complete(step)
        others = windowed(rest(step.arguments[MASK]), step.arguments[LAYER])

        def weigh(scores: np.ndarray, allowed: np.ndarray) -> Any:
            weights = softmax(scores, allowed)[0]
            empty = ~allowed.any(axis=-1, keepdims=True)
            if not empty.any():  # as wherever there is a sink
                return weights
            B, H, Q, K = scores.shape
            spare = np.broadcast_to(materialize(others, Q, K, batch=B, heads=H), scores.shape)
            return np.where(empty, softmax(0 * scores if even else scores, spare)[0], weights)

        return attend_otherwise(weigh)(change(step))

    return changed


# --- rows that see one another ----------------------------------------------------------------------------------------


def join_rows(step: Step) -> Step:
    """Every row sees the keys of all rows; with a causal mask those of the rows before it, and its own."""
    step = complete(step)
    is_ordered = has_mask(step.arguments[MASK], Causal)

    def attention(
        query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any = None, bias: Any = None,
        scale: Any = None, softcap: Any = None, sinks: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        B, H, Q, _ = query.shape
        K, row = key.shape[2], np.arange(B)
        own = np.asarray(np.broadcast_to(materialize(mask, Q, K, batch=B, heads=H), (B, H, Q, K)))
        seen = np.broadcast_to(own.transpose(1, 2, 0, 3), (B, H, Q, B, K))
        if is_ordered:
            whole = np.asarray(own.any(axis=2)).transpose(1, 0, 2)[None, :, None]
            before, same = (test(row[None], row[:, None])[:, None, None, :, None] for test in (np.less, np.equal))
            seen = (before & whole) | (same & seen)
        key, value = (
            np.broadcast_to(
                repeat_heads(array, H).transpose(1, 0, 2, 3).reshape(1, H, B * K, -1), (B, H, B * K, array.shape[-1])
            )
            for array in (key, value)
        )
        bias = None if bias is None else np.concatenate([bias] * B, axis=-1)
        pairs = np.ones((B, H, Q, B * K), bool)
        scores = attention_scores(query, key, pairs, bias=bias, scale=scale, softcap=softcap)
        return softmax(scores, seen.reshape(B, H, Q, B * K), sinks)[0] @ value

    return attend_with(attention=attention)(step)


# --- all of them ------------------------------------------------------------------------------------------------------

MASKED: tuple[tuple[str, str, StepChange, str], ...] = (
    ("padding-ignored", "padding is not masked", change_mask(drop_padding), "MASK-2"),
    (
        "padding-inverted",
        "padding is attended to, and real tokens are masked",
        change_padding(invert_padding),
        "MASK-1",
    ),
    ("padding-of-first", "all sequences have the padding of the first", change_padding(keep_one_element), "MASK-2"),
    ("padding-of-queries", "padding hides queries in place of keys", change_padding(pad_queries), "MASK-2"),
    ("not-causal", "later tokens are visible", change_mask(lambda mask: drop_masks(mask, Causal)), "MASK-3"),
    ("causal", "later tokens are masked", change_mask(add_causal), "MASK-3"),
    ("causal-next", "the next token is visible", change_causal(lambda _: Causal(1)), "MASK-3"),
    ("causal-strict", "a token does not see itself", change_causal(lambda _: Causal(-1)), "MASK-3"),
    (
        "causal-reversed",
        "earlier tokens are masked, in place of later ones",
        change_causal(lambda _: SlidingWindow(0, None)),
        "MASK-3",
    ),
    ("mask-inverted", "what the mask allows is forbidden, and what it forbids is allowed", invert_mask, "MASK-1"),
    ("no-mask", "nothing is masked", change_mask(lambda mask: None), "MASK-1"),
)
"""Masks of other pairs: name, sentence, change, rule."""


def list_fillings() -> Iterator[StepMistake]:
    """Give each wrong mask with what implementations give a row without keys."""
    for name, says, change, rule in MASKED:
        yield TOPIC.entry(name, says, change, rule)
        yield TOPIC.entry(name, says, change, rule, filling="mean")
        rest = drop_padding if name.startswith("padding") else (lambda mask: None)
        for even in (True, False):
            yield TOPIC.entry(name, says, attend_where_empty(change, rest, even), rule)


MISTAKES = (
    *list_fillings(),
    TOPIC.entry("rows-joined", "the rows of a batch attend to one another, as one sequence", join_rows, "ATT-1"),
)
