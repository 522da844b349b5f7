"""The loss curves of the free runs on one picture, and below it how far these have drifted apart."""

from __future__ import annotations

import io
from typing import Any

from conformance.reports.content import real

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Okabe and Ito's, which the colour-blind can tell apart."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 3)), (0, (1, 2)), (0, (5, 2, 1, 2)))
"""So that curves that lie on one another can all be seen."""


def figure(report: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7.5, 5.2), layout="constrained")
    losses, drifts = drawn.subplots(2, 1, sharex=True)
    draw(losses, drifts, report)
    losses.legend(frameon=False)
    for axes in (losses, drifts):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    return drawn


def draw(losses: Any, drifts: Any, report: dict[str, Any]) -> None:
    losses.plot([real(loss) for loss in report["losses"]], color="#b0b0b0", lw=4, label="definition in float64")
    for place, one in enumerate(report["implementations"]):
        look: Any = {"color": COLOURS[place % len(COLOURS)], "ls": DASHES[place % len(DASHES)], "lw": 1.6}
        losses.plot([real(loss) for loss in one["losses"]], label=one["name"], **look)
        drift = [real(distance) or float("nan") for distance in one["drift"]]  # a logarithm has no 0
        drifts.plot(drift, label=one["name"], **look)
    losses.set(ylabel="loss")
    drifts.xaxis.get_major_locator().set_params(integer=True)
    drifts.set(xlabel="step", ylabel="drift of the weights", yscale="log")


def picture(report: dict[str, Any]) -> str:
    written = io.StringIO()
    figure(report).savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return written.getvalue()[written.getvalue().index("<svg") :]
