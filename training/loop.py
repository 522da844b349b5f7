"""The run: epochs of steps, what is held out classified after each, a checkpoint, and the way back from one."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from training import checkpoints, drawing, vocabulary
from training.batches import batch_of, in_order
from training.checkpoints import Checkpoint, Place
from training.packages import Package
from training.records import Records, draw_curves
from training.reviews import Reviews, Split
from training.settings import Settings
from training.stepping import Advance, advance

TOGETHER = 256
"""Texts that are classified at once."""
PAUSE = 10
"""Seconds after which curves are drawn anew, once an epoch is over."""


class Part(NamedTuple):
    """Encoded texts, and their labels."""

    texts: list[np.ndarray]
    labels: np.ndarray


class Data(NamedTuple):
    """All that a run reads."""

    vocabulary: Any
    digest: str
    training: Part
    held_out: Part


class Display(Protocol):
    """What is shown of a run."""

    def begin(self, place: Place, steps: int) -> None:
        """A run of so many steps in all begins or goes on."""

    def step(self, taken: Advance, texts: int, tokens: int) -> None:
        """A step was taken."""

    def epoch(self, epoch: int, loss: float, accuracy: float) -> None:
        """What was held out was classified."""

    def wrote(self, path: Path) -> None:
        """A checkpoint was written."""


def prepare(split: Split, settings: Settings, tokenizer: Any = None) -> Data:
    """Encode texts, with a vocabulary of those that are trained on unless one is given."""
    if tokenizer is None:
        tokenizer = vocabulary.build(split.training.texts, settings.vocabulary, settings.longest)

    def encoded(part: Reviews) -> Part:
        return Part(vocabulary.encode(tokenizer, part.texts), np.array(part.labels))

    return Data(tokenizer, digest(split.training), encoded(split.training), encoded(split.held_out))


def digest(part: Reviews) -> str:
    """The SHA-256 of texts and labels."""
    found = hashlib.sha256()
    for text, label in zip(part.texts, part.labels, strict=True):
        found.update(f"{label} {len(text)} {text}\n".encode())
    return found.hexdigest()


def start(data: Data, settings: Settings, package: Package) -> Checkpoint:
    """What a run begins with, as a checkpoint before its first step."""
    weights = drawing.initial_weights(settings, data.vocabulary.get_vocab_size())
    state = package.numbers(package.adam_start(package.arrays(weights)))
    return Checkpoint(settings, package.name, data.digest, Place(), data.vocabulary, weights, state)


class Run:
    """A run in progress."""

    def __init__(self, package: Package, data: Data, folder: Path, begin: Checkpoint) -> None:
        self.package, self.data, self.folder, self.settings = package, data, folder, begin.settings
        self.parameters, self.place = package.arrays(begin.parameters), begin.place
        self.saved = begin.place
        fresh = package.adam_start(self.parameters)
        mean, square = package.arrays((begin.state.mean, begin.state.square))
        # The sum is an int, or JAX's array, as the package has it.
        self.state = fresh._replace(step=fresh.step + int(begin.state.step), mean=mean, square=square)

    def steps(self) -> int:
        """How many steps the run has in all."""
        return self.settings.epochs * -(-len(self.data.training.texts) // self.settings.batch)

    def train(self, display: Display, limit: int | None = None) -> Path | None:
        """Take steps, and write a checkpoint after every epoch, and where the run ends before its last.

        Args:
            display: is told what happens.
            limit: the number of steps, in all, after which to end.

        Returns:
            The last checkpoint that was written; None where there was nothing to do.

        Raises:
            FloatingPointError: for a loss or gradients that are not finite.
            OSError: where a file cannot be written. Checkpoints under their final names are whole.
        """
        path, drawn = None, time.monotonic()
        display.begin(self.place, self.steps())
        with interruptible() as interrupted, Records(self.folder, self.place.step) as records:
            whole = True
            while whole and self.place.epoch < self.settings.epochs:
                whole = self.epoch(records, display, limit, interrupted)
                if whole:
                    self.end_epoch(records, display)
                path = self.save(display)
                if time.monotonic() > drawn + PAUSE:
                    draw_curves(self.folder)
                    drawn = time.monotonic()
        if path is not None:
            draw_curves(self.folder)
        if interrupted.is_set():
            raise KeyboardInterrupt
        return path

    def epoch(self, records: Records, display: Display, limit: int | None, interrupted: threading.Event) -> bool:
        """Take the rest of an epoch's steps. False where the run has to end before."""
        settings, (texts, labels), (step, epoch, first) = self.settings, self.data.training, self.place
        lengths = np.array([len(text) for text in texts])
        for chosen in drawing.order(lengths, settings.batch, settings.seed, epoch)[first:]:
            if interrupted.is_set() or step == limit:
                return False
            batch = batch_of([texts[place] for place in chosen], labels[chosen], settings)
            keep = drawing.dropout(settings, batch.inputs[0], step)
            taken = advance(self.package, settings, self.parameters, self.state, batch, keep, step)
            numbers = {
                "loss": taken.loss,
                "accuracy": taken.right / len(chosen),
                "norm": taken.norm,
                "rate": taken.rate,
            }
            step += 1
            records.write({"step": step, "epoch": epoch} | numbers)
            self.parameters, self.state = taken.parameters, taken.state
            self.place = Place(step, epoch, self.place.batch + 1)
            display.step(taken, len(chosen), int(lengths[chosen].sum()))
        return True

    def end_epoch(self, records: Records, display: Display) -> None:
        """Classify what is held out, and go to the next epoch."""
        loss, accuracy = self.evaluate(self.data.held_out)
        display.epoch(self.place.epoch, loss, accuracy)
        found = {"held_out_loss": loss, "held_out_accuracy": accuracy}
        records.write({"step": self.place.step, "epoch": self.place.epoch} | found)
        self.place = Place(self.place.step, self.place.epoch + 1, 0)

    def evaluate(self, part: Part) -> tuple[float, float]:
        """Loss and accuracy, without dropout."""
        found = predictions(self.package, self.settings, self.parameters, part.texts)
        return -float(np.mean(found[np.arange(len(found)), part.labels])), float(
            np.mean(found.argmax(1) == part.labels)
        )

    def save(self, display: Display) -> Path | None:
        """Write a checkpoint, unless nothing was done since the last one."""
        if self.place == self.saved:
            return None
        parameters, state = self.package.numbers((self.parameters, self.state))
        data, settings, name = self.data, self.settings, self.package.name
        checkpoint = Checkpoint(settings, name, data.digest, self.place, data.vocabulary, parameters, state)
        path = checkpoints.write(self.folder, checkpoint)
        self.saved = self.place
        display.wrote(path)
        return path


def predictions(package: Package, settings: Settings, parameters: Any, texts: Sequence[np.ndarray]) -> np.ndarray:
    """Log-probabilities [N, labels] of encoded texts, for parameters of the package."""
    task, found = settings.task(), np.empty((len(texts), 2))
    for places in in_order(texts, TOGETHER):
        batch = batch_of([texts[place] for place in places], [0] * len(places), settings)
        found[places] = package.numbers(package.predict(task, parameters, batch))
    return found


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C, so that a step is ended and written down; the second one interrupts at once."""
    event = threading.Event()

    def handle(*_: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
