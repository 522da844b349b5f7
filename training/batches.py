"""Batches of encoded texts: padded to one length, which is rounded up so that JAX compiles few shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.settings import Settings
from training.task import Batch
from training.vocabulary import PADDING

LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""To which lengths are rounded up, as far as the settings allow."""


def padded(texts: Sequence[Any], length: int, padding: int) -> np.ndarray:
    """Encoded texts as tokens [B, length], with padding at their ends."""
    tokens = np.full((len(texts), length), padding)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens


def rounded_up(length: int, longest: int) -> int:
    """The length of a batch whose longest text has that length."""
    return next((enough for enough in LENGTHS if length <= enough < longest), longest)


def batch_of(texts: Sequence[np.ndarray], labels: Sequence[int], settings: Settings) -> Batch:
    tokens = padded(texts, rounded_up(max(map(len, texts)), settings.longest), PADDING)
    return Batch((tokens,), np.array(labels), {"keep": tokens != PADDING} if settings.masked else {})


def in_order(texts: Sequence[np.ndarray], batch: int) -> list[np.ndarray]:
    """Deal out texts into batches of similar lengths, the shortest first: the places of the texts of every batch."""
    places = np.argsort([len(text) for text in texts], kind="stable")
    return [places[at : at + batch] for at in range(0, len(places), batch)]
