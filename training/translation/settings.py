"""What a run of the translation is made of, apart from its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from num2words import CONVERTER_CLASSES

from specification.configuration import Configuration
from training.packages import Package
from training.settings import check
from training.task import Task
from training.translation.vocabulary import PADDING

LEAST = {
    "numbers": 1, "held_out": 1, "repeats": 1, "limit": 1000, "width": 2, "inner": 1, "heads": 1, "depth": 0,
    "batch": 1, "warmup": 1, "epochs": 1, "seed": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Of a run; ValueError for what makes no sense.

    The defaults are the paper's (sections 5.3 and 5.4), with a smaller model and a shorter warm-up.

    source, target: languages, as num2words names them. numbers, held_out: how many are trained on, and how many are
        translated after every epoch; all are below limit. repeats: how often an epoch has those below 100, of which
        there are few.
    warmup: steps in which the learning rate grows. clip: the largest norm of all gradients together.
    """

    source: str = "en"
    target: str = "de"
    numbers: int = 20_000
    held_out: int = 1000
    repeats: int = 10
    limit: int = 1_000_000
    width: int = 64
    inner: int = 256
    heads: int = 4
    depth: int = 2
    dropout: float = 0.1
    label_smoothing: float = 0.1
    batch: int = 64
    warmup: int = 1000
    clip: float = 1.0
    epochs: int = 10
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            if (value := getattr(self, name)) not in CONVERTER_CLASSES:
                raise ValueError(
                    f"{name} must be a language of num2words, {', '.join(CONVERTER_CLASSES)}; got {value!r}"
                )
        check(self, LEAST, ("clip",), ("dropout", "label_smoothing"))

    @property
    def adam(self) -> dict[str, Any]:
        """Keyword arguments of `adam_step`."""
        return {"beta_1": 0.9, "beta_2": 0.98, "eps": 1e-9}

    def rate(self, package: Package, step: int) -> Any:
        """The learning rate of a step, counted from 0."""
        return package.module.inverse_square_root(step, width=self.width, warmup=self.warmup)

    def task(self) -> Task:
        configuration = Configuration(
            self.heads, scaled_embedding=True, source_padding=PADDING, target_padding=PADDING,
        )  # fmt: skip
        options = (("label_smoothing", self.label_smoothing), ("ignore", PADDING))
        return Task("transformer", configuration, "cross_entropy", options)
