"""What is kept of a run beside its checkpoints: a log of JSON lines, events for TensorBoard, curves as a picture."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from conformance.reports.files import write_whole

LOG, CURVES, EVENTS = "log.jsonl", "curves.png", "events"
TAGS = {
    "loss": "training/loss",
    "accuracy": "training/accuracy",
    "norm": "training/gradient norm",
    "rate": "training/learning rate",
    "held_out_loss": "held out/loss",
    "held_out_accuracy": "held out/accuracy",
}
"""TensorBoard's, by the names of the log."""


class Records:
    """The log and the events of a run's folder. What an earlier run wrote after a step that is taken again is removed.

    A line of the log is {"step": s, ...}: the numbers of the s-th step, or, with "held_out_loss" and
    "held_out_accuracy", of what was held out, after s steps.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.folder, self.event, self.summary = folder, Event, Summary
        kept = "".join(json.dumps(one) + "\n" for one in read(folder / LOG) if one["step"] <= step)
        write_whole(folder / LOG, lambda beside: beside.write_text(kept, encoding="utf-8"))
        self.log = (folder / LOG).open("a", encoding="utf-8")
        self.writer = EventFileWriter(str(folder / EVENTS))
        # TensorBoard then forgets what earlier files have from this step on.
        start = SessionLog(status=SessionLog.START)
        self.writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def write(self, record: dict[str, Any]) -> None:
        """Add a line to the log, and its numbers to the events."""
        self.log.write(json.dumps(record) + "\n")
        self.log.flush()
        values = [
            self.summary.Value(tag=tag, simple_value=record[name]) for name, tag in TAGS.items() if name in record
        ]
        summary = self.summary(value=values)
        self.writer.add_event(self.event(wall_time=time.time(), step=record["step"], summary=summary))

    def close(self) -> None:
        self.log.close()
        self.writer.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Read a log, up to a line that was cut off."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def draw_curves(folder: Path) -> None:
    """Draw loss and accuracy of a run, those of training as means over a fiftieth of the steps."""
    from matplotlib.figure import Figure

    records = read(folder / LOG)
    steps = [one for one in records if "loss" in one]
    epochs = [one for one in records if "held_out_loss" in one]
    width = max(1, len(steps) // 50)
    groups = [steps[at : at + width] for at in range(0, len(steps) - width + 1, width)]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        x = [group[-1]["step"] for group in groups]
        axes.plot(x, [sum(one[name] for one in group) / len(group) for group in groups], label="training", lw=1)
        held_out = [one[f"held_out_{name}"] for one in epochs]
        axes.plot([one["step"] for one in epochs], held_out, "o-", label="held out", ms=4)
        axes.set(xlabel="step", ylabel=name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    write_whole(folder / CURVES, lambda beside: figure.savefig(beside, format="png", dpi=120))
