"""What is run in lock-step: a task of this folder in small, so that a step of three packages takes seconds."""

from __future__ import annotations

from typing import Any

from training.lockstep.recipe import Recipe
from training.lockstep.running import Plan
from training.task import Batch
from training.translation import drawing
from training.translation.numbers import drawn_numbers, in_words
from training.translation.settings import Settings
from training.translation.vocabulary import Vocabulary, batch_of


def translation(seed: int) -> Plan:
    """The encoder-decoder with one block each, on numbers below 10,000."""
    settings = Settings(
        numbers=400, limit=10_000, width=16, inner=32, heads=2, depth=1, batch=8, warmup=10, seed=seed, dtype="float64"
    )
    numbers = drawn_numbers(drawing.generator(seed, drawing.KEEP), settings.numbers, test=False, limit=settings.limit)
    pairs = [tuple(in_words(n, language) for n in numbers) for language in (settings.source, settings.target)]
    vocabularies = [
        Vocabulary.of(language, texts)
        for language, texts in zip((settings.source, settings.target), pairs, strict=True)
    ]
    encoded = [[v.encode(text) for text in texts] for v, texts in zip(vocabularies, pairs, strict=True)]
    lengths = tuple(max(map(len, rows)) for rows in encoded)

    def draws(step: int) -> tuple[Batch, Any]:
        places = [(step * settings.batch + place) % len(numbers) for place in range(settings.batch)]
        sources, targets = ([rows[place] for place in places] for rows in encoded)
        batch = batch_of(sources, targets, lengths)
        return batch, drawing.dropout(settings, batch, step)

    recipe = Recipe(settings.rate, settings.clip, tuple(settings.adam.items()))
    parameters = drawing.initial_weights(settings, *(len(v.words) for v in vocabularies))
    return Plan("translation", settings.task(), recipe, parameters, draws)
