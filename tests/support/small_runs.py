"""Small runs of the classifier: few words, few texts, everything as in a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from conformance.cli.console import console
from specification.checkpoints import read_safetensors
from training import records
from training.__main__ import app
from training.settings import Settings

GOOD, BAD = ["fine", "warm", "witty", "moving"], ["dull", "cold", "stale", "noisy"]
OTHER = ["the", "a", "film", "plot", "and"]
SMALL = Settings(
    width=8, heads=2, depth=1, vocabulary=12, longest=12, dropout=0.2, batch=4, warmup=3, epochs=2, learning_rate=0.02
)
OPTIONS = ("--width", 8, "--heads", 2, "--depth", 1, "--vocabulary", 12, "--longest", 12, "--dropout", 0.2,
           "--batch", 4, "--warmup", 3, "--decay", 0, "--epochs", 2, "--learning-rate", 0.02)  # fmt: skip
"""The same on the command line."""


def text(words: list[str], generator: np.random.Generator) -> str:
    length = int(generator.integers(2, 15))
    return " ".join(generator.choice([*words, *OTHER], length)) + f" {generator.choice(words)}"


def write_reviews(folder: Path, texts: int = 10) -> Path:
    """A folder in the layout of aclImdb, with so many texts of each label in each part."""
    generator = np.random.default_rng(5)
    for part in ("train", "test"):
        for name, words in (("pos", GOOD), ("neg", BAD)):
            (folder / part / name).mkdir(parents=True)
            for number in range(texts):
                (folder / part / name / f"{number}_7.txt").write_text(text(words, generator))
    return folder


def command(*words: Any, input: str | None = None) -> Result:
    """`python -m training` with these words. Its output is in one line for each line, however long."""
    before, console.width = console.width, 1000
    try:
        return CliRunner().invoke(app, [str(word) for word in words], input=input)
    finally:
        console.width = before


def contents(checkpoint: Path) -> dict[str, Any]:
    """All that a checkpoint holds, with the bytes of every array. safetensors orders its own metadata by chance."""
    found: dict[str, Any] = {name: (checkpoint / name).read_text() for name in ("run.json", "vocabulary.json")}
    for name in ("model.safetensors", "optimizer.safetensors"):
        arrays, metadata = read_safetensors(checkpoint / name)
        found |= {f"{name} {key}": array.tobytes() for key, array in arrays.items()} | {name: metadata}
    return found


def logged(run: Path, name: str) -> list[Any]:
    """The numbers of that name in a run's log, in order."""
    return [one[name] for one in records.read(run / "log.jsonl") if name in one]
