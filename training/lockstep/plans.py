"""What is run in lock-step: the tasks of this folder in small, so that a step takes seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from training import drawing, loop
from training.batches import batch_of
from training.lockstep.recipe import Recipe
from training.lockstep.running import Plan
from training.reviews import Reviews, Split, read
from training.settings import Settings
from training.stepping import learning_rate
from training.task import Batch
from training.translation import drawing as translation_drawing
from training.translation.numbers import drawn_numbers, in_words
from training.translation.settings import Settings as TranslationSettings
from training.translation.vocabulary import Vocabulary
from training.translation.vocabulary import batch_of as translation_batch

TEXTS = 400


def reviews(seed: int) -> Plan:
    """The classifier with one block, on movie sentences of at most 16 words."""
    settings = Settings(
        width=16,
        heads=2,
        vocabulary=400,
        longest=16,
        batch=8,
        warmup=10,
        learning_rate=0.01,
        seed=seed,
        dtype="float64",
    )
    whole = read(None).training
    every = len(whole.texts) // TEXTS
    some = Reviews(whole.texts[::every], whole.labels[::every])
    data = loop.prepare(Split(some, some), settings)
    order = drawing.order(np.array([*map(len, data.training.texts)]), settings.batch, seed, 0)

    def draws(step: int) -> tuple[Batch, Any]:
        places = order[step % len(order)]
        batch = batch_of([data.training.texts[at] for at in places], data.training.labels[places], settings)
        return batch, drawing.dropout(settings, batch.inputs[0], step)

    recipe = Recipe(lambda package, step: learning_rate(package, settings, step), settings.clip)
    weights = drawing.initial_weights(settings, data.vocabulary.get_vocab_size())
    return Plan("reviews", settings.task(), recipe, weights, draws)


def translation(seed: int) -> Plan:
    """The encoder-decoder with one block each, on numbers below 10,000."""
    settings = TranslationSettings(
        numbers=TEXTS,
        limit=10_000,
        width=16,
        inner=32,
        heads=2,
        depth=1,
        batch=8,
        warmup=10,
        seed=seed,
        dtype="float64",
    )
    numbers = drawn_numbers(drawing.generator(seed, drawing.ORDER), settings.numbers, test=False, limit=settings.limit)
    encoded, sizes = [], []
    for language in (settings.source, settings.target):
        texts = [in_words(number, language) for number in numbers]
        vocabulary = Vocabulary.of(language, texts)
        encoded.append([vocabulary.encode(text) for text in texts])
        sizes.append(len(vocabulary.words))
    sources, targets = encoded
    lengths = max(map(len, sources)), max(map(len, targets))

    def draws(step: int) -> tuple[Batch, Any]:
        places = [(step * settings.batch + place) % len(numbers) for place in range(settings.batch)]
        batch = translation_batch([sources[at] for at in places], [targets[at] for at in places], lengths)
        return batch, translation_drawing.dropout(settings, batch, step)

    recipe = Recipe(settings.rate, settings.clip, tuple(settings.adam.items()))
    weights = translation_drawing.initial_weights(settings, *sizes)
    return Plan("translation", settings.task(), recipe, weights, draws)


PLANS = {"translation": translation, "reviews": reviews}
"""By the name of the task, from the seed."""
