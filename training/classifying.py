"""Labels and probabilities of new texts, from a checkpoint: the tutorial's "inference", which it leaves to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from conformance.models.structures import widen_parameters
from training import vocabulary
from training.checkpoints import Checkpoint
from training.packages import Package
from training.review_data import predictions
from training.reviews import LABELS


class Classified(NamedTuple):
    label: str
    probability: float


def classify(package: Package, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Classified]:
    """Classify texts; ValueError for one without words, or that is not UTF-8, by its number.

    Everything is computed in float64, whatever the model was trained in, so that the packages give the same digits.
    """
    for number, text in enumerate(texts, start=1):
        if not text.split():
            raise ValueError(f"text {number} has no words")
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes that Python could not read
            raise ValueError(f"text {number} is not UTF-8")
    wide = package.arrays(widen_parameters(checkpoint.parameters))
    settings = replace(checkpoint.settings, dtype="float64")
    found = predictions(package, settings, wide, vocabulary.encode(checkpoint.vocabulary, texts))
    return [Classified(LABELS[row.argmax()], float(np.exp(row.max()))) for row in found]
