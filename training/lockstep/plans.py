"""What is run in lock-step: the tasks of this folder in small, so that a step takes seconds."""

from __future__ import annotations

from typing import Any

from training import review_data
from training.lockstep.running import Plan
from training.reviews import Reviews, Split, read
from training.settings import Settings
from training.task import Batch
from training.translation import data as translation_data
from training.translation.settings import Settings as TranslationSettings

TEXTS = 400
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "depth": 1, "batch": 8, "warmup": 10, "dtype": "float64"}


def reviews(seed: int) -> Plan:
    """The classifier with one block, on movie sentences of at most 16 words."""
    settings = Settings(vocabulary=400, longest=16, learning_rate=0.01, seed=seed, **SMALL)
    whole = read(None).training
    every = len(whole.texts) // TEXTS
    some = Reviews(whole.texts[::every], whole.labels[::every])
    return plan("reviews", review_data.prepare(Split(some, some), settings))


def translation(seed: int) -> Plan:
    """The encoder-decoder with one block each, on numbers below 10,000."""
    settings = TranslationSettings(numbers=TEXTS, held_out=1, limit=10_000, inner=32, seed=seed, **SMALL)
    return plan("translation", translation_data.prepare(settings))


def plan(name: str, data: Any) -> Plan:
    """The run of these data. data: as `loop.Data`, with its settings."""
    settings, order = data.settings, data.order(0)

    def draws(step: int) -> tuple[Batch, Any]:
        batch = data.batch(order[step % len(order)])
        return batch, data.dropout(batch, step)

    return Plan(name, settings, data.initial_weights(), draws)


PLANS = {"translation": translation, "reviews": reviews}
"""By the name of the task, from the seed."""
