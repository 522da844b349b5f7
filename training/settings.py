"""What a run of the classifier is made of, apart from its data."""

from __future__ import annotations

from dataclasses import dataclass

from specification.configuration import Configuration
from training.task import Task
from training.vocabulary import PADDING


@dataclass(frozen=True)
class Settings:
    """Of a run; the defaults are those for the movie sentences.

    vocabulary: the largest number of entries. longest: where texts are cut.
    masked: whether padding is left out of attention and pooling; the tutorial does not leave it out.
    warmup: steps in which the learning rate grows. clip: the largest norm of all gradients together.
    """

    width: int = 128
    heads: int = 8
    depth: int = 1
    vocabulary: int = 20_000
    longest: int = 256
    pooling: str = "mean"
    masked: bool = True
    dropout: float = 0.2
    batch: int = 32
    learning_rate: float = 1e-3
    warmup: int = 200
    clip: float = 1.0
    epochs: int = 5
    seed: int = 0
    dtype: str = "float32"

    def task(self) -> Task:
        padding = PADDING if self.masked else None
        configuration = Configuration(
            self.heads, scale="model_width", positions="learned", pooling=self.pooling, source_padding=padding
        )
        return Task("classifier", configuration, "nll_loss")


TUTORIAL = Settings(
    depth=3, vocabulary=50_000, pooling="max", masked=False, batch=4, learning_rate=1e-4, warmup=2500, epochs=4
)
"""Those of the tutorial."""
