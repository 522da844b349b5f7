"""Pictures of a result: time and memory over length, and how far the others are behind or ahead, case by case."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

Result = dict[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's, which the colour-blind can tell apart, with a brown for their yellow, which white swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "d")
DPI = 200
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def plot(result: Result, folder: Path) -> list[Path]:
    """The files that were written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with pyplot.rc_context(STYLE):
        for name, figure in figures(result):
            path = folder / f"{slug(name)}.png"
            figure.savefig(path, dpi=DPI, bbox_inches="tight")
            pyplot.close(figure)
            written.append(path)
    return written


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def figures(result: Result) -> Iterator[tuple[str, Any]]:
    series: dict[str, list[Result]] = {}
    for case in result["cases"]:
        if case["series"]:
            series.setdefault(case["series"], []).append(case)
    for name, cases in series.items():
        if len({case["K"] for case in cases}) > 1:
            yield f"growth {name}", growth(name, cases, result, Looks(result, cases[0]["operation"]))
    bases = {base: case["operation"] for case in result["cases"] for base in case["bases"]}
    for base, operation in bases.items():
        found = ratios(base, result, Looks(result, operation))
        if found is not None:
            yield f"ratios {base}", found


class Looks:
    """Colour, marker and line of a subject, the same in all pictures of an operation: ours full, the others hollow."""

    def __init__(self, result: Result, operation: str) -> None:
        cases = [case for case in result["cases"] if case["operation"] == operation]
        every = [(s["ours"], s["name"]) for case in cases for s in case["subjects"] if s["status"] == "measured"]
        self.names = list(dict.fromkeys(name for ours in (True, False) for is_ours, name in every if is_ours == ours))
        self.ours = {name for is_ours, name in every if is_ours}

    def colour(self, name: str) -> str:
        return COLOURS[self.names.index(name) % len(COLOURS)]

    def line(self, name: str) -> dict[str, Any]:
        number, mine = self.names.index(name), name in self.ours
        return {
            "color": self.colour(name),
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": "-" if mine else "--" if number % 2 else ":",
            "linewidth": 2.0 if mine else 1.2,
            "markersize": 5 if mine else 4.5,
            "markerfacecolor": self.colour(name) if mine else "white",
            "zorder": 3 if mine else 2,
        }

    def handles(self, used: Container[str]) -> list[Any]:
        """Of a legend, without error bars."""
        from matplotlib.lines import Line2D

        return [Line2D([], [], label=name, **self.line(name)) for name in self.names if name in used]


def machine(result: Result) -> str:
    found = result["environment"]
    return f"{found['gpu'] or found['cpu']}, {found['threads']} threads"


# --- over length ------------------------------------------------------------------------------------------------------


def growth(name: str, cases: list[Result], result: Result, looks: Looks) -> Any:
    """Time and peak memory over T, both axes logarithmic."""
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    with_memory = {case["K"] for case in cases for one in case["subjects"] if one["memory"]}
    panels = 2 if len(with_memory) > 1 else 1
    figure, grid = pyplot.subplots(1, panels, figsize=(3 + 3.5 * panels, 4.2), layout="constrained", squeeze=False)
    axes, used = grid[0], set()
    cases = sorted(cases, key=lambda case: case["K"])
    for subject in looks.names:
        points = [(case["K"], found) for case in cases if (found := of(case, subject)) is not None]
        if not points:
            continue
        used.add(subject)
        style = looks.line(subject)
        lengths = [length for length, _ in points]
        times = [found["seconds"] for _, found in points]
        spread = [[t["median"] - t["low"] for t in times], [t["high"] - t["median"] for t in times]]
        axes[0].errorbar(lengths, [t["median"] for t in times], yerr=spread, capsize=2, elinewidth=0.8, **style)
        known = [(length, found["memory"]) for length, found in points if found["memory"]]
        if known and panels == 2:
            axes[1].plot(*zip(*known, strict=True), **style)
    for axis, label in zip(axes, ("time of a call [s]", "peak memory above the inputs"), strict=False):
        axis.set(xscale="log", yscale="log", xlabel="length T [tokens]", ylabel=label)
        axis.xaxis.set_major_locator(FixedLocator([case["K"] for case in cases]))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.tick_params(axis="x", rotation=30)
    first = cases[0]
    sizes = f"B={first['B']}, H={first['H']}, D={first['D']}, {first['dtype']}"
    direction = "" if name.endswith(first["direction"]) else f", {first['direction']}"
    figure.suptitle(f"{name}{direction} ({sizes}; {machine(result)})", fontsize=10)
    if panels == 2:
        axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
    figure.legend(handles=looks.handles(used), loc="outside right center", fontsize=8)
    return figure


def in_bytes(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:g} B"


def of(case: Result, subject: str) -> Result | None:
    found = next((one for one in case["subjects"] if one["name"] == subject), None)
    return found if found is not None and found["status"] == "measured" else None


# --- ratios -----------------------------------------------------------------------------------------------------------

ROW = 0.17
"""Inches of a case's row, and as much again for every seven subjects in it."""


def ratios(base: str, result: Result, looks: Looks) -> Any:
    """A row for every case: the time of each peer over that of the base. None if there is nothing to show."""
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    rows = [(case["name"], shown(case, base, looks)) for case in result["cases"] if base in case["bases"]]
    rows = [(name, found) for name, found in rows if found]
    if not rows:
        return None
    most = max(len(found) for _, found in rows)
    figure, axis = pyplot.subplots(figsize=(9, 1.0 + ROW * len(rows) * (1 + most / 7)), layout="constrained")
    used = set()
    for row, (_, found) in enumerate(rows):
        if row % 2:
            axis.axhspan(row - 0.5, row + 0.5, color="#f2f2f2", linewidth=0, zorder=0)
        for number, (subject, ratio) in enumerate(found):
            position = row + 0.8 * ((number + 0.5) / len(found) - 0.5)
            spread = [[ratio["median"] - ratio["low"]], [ratio["high"] - ratio["median"]]]
            axis.errorbar(
                ratio["median"], position, xerr=spread, capsize=1.5, elinewidth=0.8,
                **(looks.line(subject) | {"linestyle": "none"}),
            )  # fmt: skip
            used.add(subject)
    axis.axvline(1, color="#333333", linewidth=0.8, zorder=1)
    axis.set(xscale="log", ylim=(len(rows) - 0.5, -0.5), xlabel=f"time / time of {base}; above 1, {base} is ahead")
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.tick_params(axis="y", length=0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", visible=False)
    axis.set_title(f"Others against {base} ({machine(result)})", loc="left")
    figure.legend(handles=looks.handles(used), loc="outside right upper", fontsize=8)
    return figure


def shown(case: Result, base: str, looks: Looks) -> list[tuple[str, Result]]:
    """The peers of a case, and the other bases, in the order of the legend."""
    others = set(case["bases"]) - {base}
    found = [s for s in case["subjects"] if s["status"] == "measured" and (not s["ours"] or s["name"] in others)]
    found.sort(key=lambda subject: looks.names.index(subject["name"]))
    return [(s["name"], s["ratios"][base]) for s in found if s["ratios"].get(base)]
