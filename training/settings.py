"""What a run of the classifier is made of, apart from its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specification.configuration import Configuration
from training.packages import Package
from training.task import RunSettings, Task, setting
from training.vocabulary import PADDING, SPECIAL


@dataclass(frozen=True)
class Settings(RunSettings):
    """Of a run; the defaults are those for the movie sentences. ValueError for what makes no sense.

    spread: PyTorch's default, and the tutorial's, is 1. masked: the tutorial does not leave padding out.
    """

    width: int = setting(128, "of the model", least=1)
    heads: int = setting(4, "of attention", least=1)
    depth: int = setting(1, "blocks", least=0)
    vocabulary: int = setting(20_000, "its largest size", least=len(SPECIAL) + 1)
    longest: int = setting(256, "words after which a text is cut", least=1)
    spread: float = setting(0.02, "deviation of the initial embedding")
    pooling: str = setting("mean", "max or mean")
    masked: bool = setting(True, "leave padding out of attention and pooling, or do not", shown="masked")
    dropout: float = setting(0.7, "its rate", share=True)
    batch: int = setting(32, "texts of a step", least=1)
    learning_rate: float = setting(1e-3, "after warm-up")
    warmup: int = setting(200, "steps in which the learning rate grows", least=1)
    decay: int = setting(0, "steps in which it falls to 0 by half a cosine; 0: it stays", least=0, shown="all steps")
    clip: float = setting(1.0, "the largest norm of all gradients together")
    epochs: int = setting(3, "how often all texts are read", least=1)
    seed: int = setting(0, "by which everything random is drawn", least=0)
    dtype: str = setting("float32", "float32 or float64")

    def rate(self, package: Package, step: int) -> Any:
        """The rate of a step: that of the settings times min(step / warmup, 1), as the tutorial's scheduler has it.

        So the first step, step 0, moves nothing. `linear_warmup` counts from 0 and moves at once.
        """
        if step == 0:
            return 0.0
        rate = self.learning_rate * package.module.linear_warmup(step - 1, steps=self.warmup)
        return rate * package.module.cosine_decay(step, steps=self.decay) if self.decay else rate

    def task(self) -> Task:
        padding = PADDING if self.masked else None
        configuration = Configuration(
            self.heads, scale="model_width", positions="learned", pooling=self.pooling, source_padding=padding
        )
        return Task("classifier", configuration, "nll_loss")


TUTORIAL = Settings(
    heads=8, depth=3, vocabulary=50_000, spread=1.0, pooling="max", masked=False, dropout=0.2, batch=4,
    learning_rate=1e-4, warmup=2500, epochs=4,
)  # fmt: skip
"""Those of the tutorial."""
