"""Reviews as a run reads them: encoded, dealt out into batches, and evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specification.parameters import Classifier
from training import drawing, vocabulary
from training.batches import batch_of, in_order
from training.packages import Package
from training.reviews import Reviews, Split
from training.settings import Settings
from training.task import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from specification.parameters import ModelParameters

TOGETHER = 256
"""Texts that are classified at once."""


class Part(NamedTuple):
    """Encoded texts, and their labels."""

    texts: list[np.ndarray]
    labels: np.ndarray


class ReviewData(NamedTuple):
    """The `Data` of a run of the classifier."""

    settings: Settings
    vocabulary: Any
    digest: str
    training: Part
    held_out: Part

    @property
    def size(self) -> int:
        return len(self.training.texts)

    def initial_weights(self) -> Classifier:
        return drawing.initial_weights(self.settings, self.vocabulary.get_vocab_size())

    def order(self, epoch: int) -> list[np.ndarray]:
        lengths = np.array([len(text) for text in self.training.texts])
        return drawing.order(lengths, self.settings.batch, self.settings.seed, epoch)

    def batch(self, places: np.ndarray) -> Batch:
        texts, labels = self.training
        return batch_of([texts[place] for place in places], labels[places], self.settings)

    def dropout(self, batch: Batch, step: int) -> Any:
        return drawing.dropout(self.settings, batch.inputs[0], step)

    def evaluate(self, package: Package, parameters: ModelParameters) -> tuple[float, float]:
        texts, labels = self.held_out
        found = predictions(package, self.settings, parameters, texts)
        return -float(np.mean(found[np.arange(len(found)), labels])), float(np.mean(found.argmax(1) == labels))


def prepare(split: Split, settings: Settings, tokenizer: Tokenizer | None = None) -> ReviewData:
    """Encode texts, with a vocabulary of those that are trained on unless one is given."""
    if tokenizer is None:
        tokenizer = vocabulary.build(split.training.texts, settings.vocabulary, settings.longest)

    def encoded(part: Reviews) -> Part:
        return Part(vocabulary.encode(tokenizer, part.texts), np.array(part.labels))

    return ReviewData(settings, tokenizer, digest(split.training), encoded(split.training), encoded(split.held_out))


def digest(part: Reviews) -> str:
    found = hashlib.sha256()
    for text, label in zip(part.texts, part.labels, strict=True):
        found.update(f"{label} {len(text)} {text}\n".encode())
    return found.hexdigest()


def predictions(
    package: Package, settings: Settings, parameters: ModelParameters, texts: Sequence[np.ndarray]
) -> np.ndarray:
    """Log-probabilities [N, labels] of encoded texts, for parameters of the package."""
    task, found = settings.task(), np.empty((len(texts), 2))
    for places in in_order(texts, TOGETHER):
        batch = batch_of([texts[place] for place in places], [0] * len(places), settings)
        found[places] = package.numbers(package.predict(task, parameters, batch))
    return found
