"""Masks read wrongly (MASK-1 to MASK-6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.mistakes.attention_steps import AttentionSteps
from conformance.mistakes.call import Call
from conformance.mistakes.condition import past
from conformance.mistakes.mistake import Mistake

MASKED = ("attention", "attention_weights", "attention_logsumexp")

# --- the allowed pairs as an array ------------------------------------------------------------------------------------


def read_mask(read: Callable[..., np.ndarray]) -> Callable[..., AttentionSteps | None]:
    """Take `read(visible, **values)` for the allowed pairs [B, H, Q, K] of a call that has a mask."""

    def change(call: Call, **values: Any) -> AttentionSteps | None:
        visible = call.steps.visible
        if call.case.options.get("mask") is None:
            return None
        return call.steps.changed(visible=np.broadcast_to(read(visible, **values), visible.shape))

    return change


def transpose_pairs(visible: np.ndarray) -> np.ndarray:
    return visible.swapaxes(2, 3) if visible.shape[2] == visible.shape[3] else visible


def repeat_over_flat_heads(visible: np.ndarray) -> np.ndarray:
    """Repeat [B, 1, Q, K] H times one after the other, and cut that as [B, H, Q, K]."""
    B, H, *pairs = visible.shape
    if not np.array_equal(visible, np.broadcast_to(visible[:, :1], visible.shape)):
        return visible
    return np.tile(visible[:, 0], (H, 1, 1)).reshape(B, H, *pairs)


def wrap_row_offset(visible: np.ndarray, modulus: int) -> np.ndarray:
    """Row i begins at i * K modulo so much."""
    *lead, Q, K = visible.shape
    if modulus >= Q * K:
        return visible
    places = (np.arange(Q) * K % modulus)[:, None] + np.arange(K)
    return visible.reshape(*lead, Q * K)[..., np.minimum(places, Q * K - 1)]


ARRAYS = (
    Mistake(
        "masks.inverted",
        "MASK-1",
        "the mask is inverted: True is taken for forbidden",
        read_mask(np.logical_not),
        operations=MASKED,
    ),
    Mistake("masks.ignored", "MASK-1", "the mask is ignored", read_mask(np.ones_like), operations=MASKED),
    Mistake("masks.transposed", "MASK-1", "the mask is transposed", read_mask(transpose_pairs), operations=MASKED),
    Mistake(
        "masks.batch-repeated-over-flat-heads",
        "MASK-1",
        "the mask of batch element (b * H + h) % B is used",
        read_mask(repeat_over_flat_heads),
        operations=MASKED,
    ),
    Mistake(
        "masks.row-offset-wraps",
        "MASK-1",
        "the offset of a mask's row wraps around at {modulus}",
        read_mask(wrap_row_offset),
        parameters={"modulus": (2**16, 2**8, 2**15, 2**31)},
    ),
)

MISTAKES = ARRAYS
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(ARRAYS[1].under(past("K", n)) for n in (256, 4096)),
)
"""What is planted: every mistake with the first values of its parameters, and some past a size."""
