"""The run: epochs of steps, what is held out evaluated after each, a checkpoint, and the way back from one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from training import checkpoints
from training.checkpoints import Checkpoint, Place
from training.display import Terminal
from training.packages import Package
from training.records import Records, draw_curves
from training.stepping import Advance, advance
from training.task import Batch, RunSettings

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

PAUSE = 10
"""Seconds after which curves are drawn anew, once an epoch is over."""


class Data(Protocol):
    """All that a run reads.

    vocabulary: has `to_str`. digest: of what is trained on. size: how many texts that is. initial_weights: NumPy
    arrays. order: for every batch of an epoch the places of its texts. dropout: the keep masks of a step, or None.
    evaluate: loss and accuracy on what is held out, without dropout, for the package's parameters.
    """

    @property
    def vocabulary(self) -> Any: ...
    @property
    def digest(self) -> str: ...
    @property
    def size(self) -> int: ...
    def initial_weights(self) -> Any: ...
    def order(self, epoch: int) -> Sequence[np.ndarray]: ...
    def batch(self, places: np.ndarray) -> Batch: ...
    def dropout(self, batch: Batch, step: int) -> Any: ...
    def evaluate(self, package: Package, parameters: ModelParameters) -> tuple[float, float]: ...


def start(data: Data, settings: RunSettings, package: Package) -> Checkpoint:
    """What a run begins with, as a checkpoint before its first step."""
    weights = data.initial_weights()
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

    def train(self, display: Terminal, limit: int | None = None) -> Path | None:
        """Take steps, and write a checkpoint after every epoch, and where the run ends before its last.

        Args:
            display: shows what happens.
            limit: the number of steps, in all, after which to end.

        Returns:
            The last checkpoint that was written; None where there was nothing to do.

        Raises:
            FloatingPointError: for a loss or gradients that are not finite.
            OSError: where a file cannot be written. Checkpoints under their final names are whole.
        """
        path, drawn = None, time.monotonic()
        display.begin(self.place, self.settings.epochs * -(-self.data.size // self.settings.batch))
        with interruptible() as interrupted, closing(Records(self.folder, self.place.step)) as records:
            whole = True
            while whole and self.place.epoch < self.settings.epochs:
                whole = self.epoch(records, display, limit, interrupted)
                if whole:
                    step, epoch, _ = self.place
                    loss, accuracy = self.data.evaluate(self.package, self.parameters)
                    display.epoch(epoch, loss, accuracy)
                    found = {"held_out_loss": loss, "held_out_accuracy": accuracy}
                    records.write({"step": step, "epoch": epoch} | found)
                    self.place = Place(step, epoch + 1, 0)
                path = self.save(display) or path
                if time.monotonic() > drawn + PAUSE:
                    draw_curves(self.folder)
                    drawn = time.monotonic()
        if path is not None:
            draw_curves(self.folder)
        if interrupted.is_set():
            raise KeyboardInterrupt
        return path

    def epoch(self, records: Records, display: Terminal, limit: int | None, interrupted: threading.Event) -> bool:
        """Take the rest of an epoch's steps. False where the run has to end before."""
        step, epoch, first = self.place
        for chosen in self.data.order(epoch)[first:]:
            if interrupted.is_set() or (limit is not None and step >= limit):
                return False
            batch = self.data.batch(chosen)
            taken = self.take_step(batch)
            numbers = {name: getattr(taken, name) for name in ("loss", "accuracy", "norm", "rate")}
            step = self.place.step
            records.write({"step": step, "epoch": epoch} | numbers)
            display.step(taken, sum(tokens.size for tokens in batch.inputs))
        return True

    def take_step(self, batch: Batch) -> Advance:
        step, epoch, done = self.place
        keep = self.data.dropout(batch, step)
        taken = advance(self.package, self.settings, self.parameters, self.state, batch, keep, step)
        self.parameters, self.state = taken.parameters, taken.state
        self.place = Place(step + 1, epoch, done + 1)
        return taken

    def follow_steps(self, limit: int | None = None) -> None:
        """Take the steps of a run that another process shows and writes."""
        while self.place.epoch < self.settings.epochs:
            for chosen in self.data.order(self.place.epoch)[self.place.batch :]:
                if limit is not None and self.place.step >= limit:
                    return
                self.take_step(self.data.batch(chosen))
            self.place = Place(self.place.step, self.place.epoch + 1, 0)

    def save(self, display: Terminal) -> Path | None:
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


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C, so that a step is ended and written down; the second one interrupts at once."""
    event = threading.Event()

    def handle(*_: object) -> None:
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
