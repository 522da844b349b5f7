"""A run in the terminal: a bar with loss, accuracy, tokens per second and the time left, and a line for every epoch."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from training.checkpoints import Place
from training.stepping import Advance

RECENT = 0.98
"""Of what is shown of a step, how much is that of the steps before."""


class Terminal:
    """What is shown of a run. Without a terminal only the lines of the epochs are printed."""

    def __init__(self, console: Console) -> None:
        shown = TextColumn("loss {task.fields[loss]:.3f}  accuracy {task.fields[accuracy]:.1%}")
        speed = TextColumn("{task.fields[speed]:,.0f} tokens/s")
        columns = (BarColumn(20), MofNCompleteColumn(), shown, speed, TimeRemainingColumn())
        self.console = console
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task = self.progress.add_task("", total=None, loss=0.0, accuracy=0.0, speed=0.0)
        self.loss = self.accuracy = self.weight = 0.0
        self.tokens, self.since = 0, time.monotonic()
        self.place = self.told = 0
        """The last step, and that after which a line was last printed."""

    def begin(self, place: Place, steps: int) -> None:
        self.progress.update(self.task, total=steps, completed=place.step)
        self.place = self.told = place.step

    def step(self, taken: Advance, tokens: int) -> None:
        self.tokens += tokens
        self.place += 1
        self.weight = RECENT * self.weight + 1 - RECENT
        self.loss = RECENT * self.loss + (1 - RECENT) * taken.loss
        self.accuracy = RECENT * self.accuracy + (1 - RECENT) * taken.accuracy
        speed = self.tokens / max(time.monotonic() - self.since, 1e-9)
        means: dict[str, Any] = {"loss": self.loss / self.weight, "accuracy": self.accuracy / self.weight}
        self.progress.update(self.task, advance=1, speed=speed, **means)

    def epoch(self, epoch: int, loss: float, accuracy: float) -> None:
        self.told = self.place
        self.console.print(Text(f"epoch {epoch + 1}  held-out loss {loss:.4f}  held-out accuracy {accuracy:.2%}"))

    def wrote(self, path: Path) -> None:
        self.console.print(Text(f"wrote {path}", style="dim"))

    def __enter__(self) -> Terminal:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.progress.stop()
        if kind is None and self.place > self.told:
            loss, accuracy = self.loss / self.weight, self.accuracy / self.weight
            self.console.print(Text(f"step {self.place}  training loss {loss:.4f}  training accuracy {accuracy:.2%}"))
