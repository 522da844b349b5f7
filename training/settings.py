"""What a run of the classifier is made of, apart from its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specification.configuration import Configuration
from training.packages import Package
from training.task import Task
from training.vocabulary import PADDING, SPECIAL

LEAST = {"width": 1, "heads": 1, "depth": 0, "longest": 1, "batch": 1, "warmup": 1, "decay": 0, "epochs": 1, "seed": 0}
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Settings:
    """Of a run; the defaults are those for the movie sentences. ValueError for what makes no sense.

    vocabulary: the largest number of entries. longest: where texts are cut, in words.
    spread: the deviation of the embedding's initial numbers; PyTorch's default, and the tutorial's, is 1.
    masked: whether padding is left out of attention and pooling; the tutorial does not leave it out.
    warmup: steps in which the learning rate grows. decay: steps in which it falls to 0 by half a cosine; with 0
    it stays. clip: the largest norm of all gradients together.
    """

    width: int = 128
    heads: int = 4
    depth: int = 1
    vocabulary: int = 20_000
    longest: int = 256
    spread: float = 0.02
    pooling: str = "mean"
    masked: bool = True
    dropout: float = 0.7
    batch: int = 32
    learning_rate: float = 1e-3
    warmup: int = 200
    decay: int = 0
    clip: float = 1.0
    epochs: int = 3
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check(self, LEAST | {"vocabulary": len(SPECIAL) + 1}, ("spread", "learning_rate", "clip"), ("dropout",))

    @property
    def adam(self) -> dict[str, Any]:
        """Keyword arguments of `adam_step`: its defaults."""
        return {}

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


def check(settings: Any, least: Mapping[str, int], positive: Sequence[str], shares: Sequence[str]) -> None:
    """Raise ValueError for settings that make no sense.

    Args:
        settings: of a run.
        least: by name, the least that an integer may be.
        positive: numbers above 0.
        shares: numbers of at least 0 and below 1.
    """
    for name, smallest in least.items():
        value = getattr(settings, name)
        if not isinstance(value, int) or value < smallest:
            raise ValueError(f"{name} must be an integer of at least {smallest}, got {value!r}")
    for name in positive:
        if not 0 < getattr(settings, name) < float("inf"):
            raise ValueError(f"{name} must be above 0 and finite, got {getattr(settings, name)!r}")
    for name in shares:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(settings, name)!r}")
    if settings.width % settings.heads:
        raise ValueError(f"width must be divisible by heads, got {settings.width} and {settings.heads}")
    if settings.dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {settings.dtype!r}")
    settings.task()


TUTORIAL = Settings(
    heads=8, depth=3, vocabulary=50_000, spread=1.0, pooling="max", masked=False, dropout=0.2, batch=4,
    learning_rate=1e-4, warmup=2500, epochs=4,
)  # fmt: skip
"""Those of the tutorial."""
