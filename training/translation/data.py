"""Numbers as a run reads them: drawn, written out, encoded, dealt out into batches, and evaluated."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reference_numpy import cross_entropy
from specification.parameters import Transformer
from training.checkpoints import Kind
from training.drawing import NUMBERS, generator, order
from training.packages import Package
from training.task import Batch
from training.translation import drawing
from training.translation.numbers import FEW, drawn_numbers, in_words
from training.translation.settings import Settings
from training.translation.translating import TOGETHER, translate
from training.translation.vocabulary import Vocabularies, Vocabulary, batch_of

if TYPE_CHECKING:
    from specification.parameters import ModelParameters


class NumberData(NamedTuple):
    """The `Data` of a run of the translation. sources, targets: encoded, of the numbers that are trained on.

    lengths: to which every batch is padded, so that JAX compiles once.
    """

    settings: Settings
    vocabulary: Vocabularies
    digest: str
    sources: list[list[int]]
    targets: list[list[int]]
    held_out: list[int]
    lengths: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.sources)

    def initial_weights(self) -> Transformer:
        return drawing.initial_weights(self.settings, *map(len, self.vocabulary.words))

    def order(self, epoch: int) -> list[np.ndarray]:
        lengths = np.array([len(source) for source in self.sources])
        return order(lengths, self.settings.batch, self.settings.seed, epoch)

    def batch(self, places: np.ndarray) -> Batch:
        return batch_of([self.sources[at] for at in places], [self.targets[at] for at in places], self.lengths)

    def dropout(self, batch: Batch, step: int) -> Any:
        return drawing.dropout(self.settings, batch, step)

    def evaluate(self, package: Package, parameters: ModelParameters) -> tuple[float, float]:
        """The loss of a token, and the share of the numbers that are translated without a mistake."""
        task, total, counted = self.settings.task(), 0.0, 0
        texts, right = (
            [in_words(number, language) for number in self.held_out]
            for language in (self.settings.source, self.settings.target)
        )
        for start in range(0, len(texts), TOGETHER):
            sources = [self.vocabulary.source.encode(text) for text in texts[start : start + TOGETHER]]
            targets = [self.vocabulary.target.encode(text) for text in right[start : start + TOGETHER]]
            batch = batch_of(sources, targets, self.lengths)
            output = package.numbers(package.predict(task, parameters, batch))
            total += float(cross_entropy(output, batch.targets, **dict(task.loss_options), reduction="sum"))
            counted += sum(map(len, targets))
        found = translate(package, parameters, task.configuration, self.vocabulary, texts)
        return total / counted, float(np.mean([one == other for one, other in zip(found, right, strict=True)]))


def prepare(settings: Settings) -> NumberData:
    """Draw numbers, and write them out. The vocabularies have the words of all of them."""
    training, held_out = (
        drawn_numbers(generator(settings.seed, NUMBERS, test), count, test=test, limit=settings.limit)
        for test, count in ((False, settings.numbers), (True, settings.held_out))
    )

    training += [number for number in training if number < FEW] * (settings.repeats - 1)

    def written(language: str) -> tuple[Vocabulary, list[list[int]]]:
        texts = [in_words(number, language) for number in training + held_out]
        vocabulary = Vocabulary.of(language, texts)
        return vocabulary, [vocabulary.encode(text) for text in texts]

    (source, sources), (target, targets) = map(written, (settings.source, settings.target))
    lengths = max(map(len, sources)), max(map(len, targets))
    sources, targets = sources[: len(training)], targets[: len(training)]
    vocabulary = Vocabularies(source, target, lengths[1])
    told = repr((vocabulary.to_str(), training, sources, targets))  # num2words may write otherwise one day
    digest = hashlib.sha256(told.encode()).hexdigest()
    return NumberData(settings, vocabulary, digest, sources, targets, held_out, lengths)


TRANSLATION = Kind("translation", Settings, Transformer, Vocabularies.read, lambda both: map(len, both.words))
