"""What a run of the translation is made of, apart from its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from specification.configuration import Configuration
from training.packages import Package
from training.task import RunSettings, Task, setting
from training.translation.vocabulary import PADDING


@dataclass(frozen=True)
class Settings(RunSettings):
    """Of a run; ValueError for what makes no sense.

    The defaults are the paper's (sections 5.3 and 5.4), with a smaller model and a shorter warm-up.
    """

    source: str = setting("en", "language, as num2words names it")
    target: str = setting("de", "language that is translated into")
    numbers: int = setting(20_000, "how many are trained on", least=1)
    held_out: int = setting(1000, "how many are translated after every epoch", least=1)
    repeats: int = setting(10, "how often an epoch has numbers below 100, of which there are few", least=1)
    limit: int = setting(1_000_000, "numbers are smaller", least=1000)
    width: int = setting(64, "of the model", least=2)
    inner: int = setting(256, "of the feed-forward network", least=1)
    heads: int = setting(4, "of attention", least=1)
    depth: int = setting(2, "blocks of the encoder, and of the decoder", least=0)
    dropout: float = setting(0.1, "its rate", share=True)
    label_smoothing: float = setting(0.1, "shared by all tokens", share=True)
    batch: int = setting(64, "numbers of a step", least=1)
    warmup: int = setting(1000, "steps in which the learning rate grows", least=1)
    clip: float = setting(1.0, "the largest norm of all gradients together")
    epochs: int = setting(10, "how often all numbers are read", least=1)
    seed: int = setting(0, "by which everything random is drawn", least=0)
    dtype: str = setting("float32", "float32 or float64")

    adam: ClassVar[Mapping[str, Any]] = {"beta_1": 0.9, "beta_2": 0.98, "eps": 1e-9}

    def __post_init__(self) -> None:
        from num2words import CONVERTER_CLASSES as LANGUAGES

        for name in ("source", "target"):
            if (value := getattr(self, name)) not in LANGUAGES:
                raise ValueError(f"{name} must be a language of num2words, {', '.join(LANGUAGES)}; got {value!r}")
        super().__post_init__()

    def rate(self, package: Package, step: int) -> Any:
        """The learning rate of a step, counted from 0."""
        return package.module.inverse_square_root(step, width=self.width, warmup=self.warmup)

    def task(self) -> Task:
        configuration = Configuration(
            self.heads, scaled_embedding=True, source_padding=PADDING, target_padding=PADDING,
        )  # fmt: skip
        options = (("label_smoothing", self.label_smoothing), ("ignore", PADDING))
        return Task("transformer", configuration, "cross_entropy", options)
