"""Pictures of a result: time and memory over length, and how far the others are behind or ahead, case by case.

They are SVG, as wide as a phone, with a title above and a legend below, and light or dark as the reader's screen is.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.timing.results.case_table import measured
from conformance.timing.results.ranking import count_noun

Result = dict[str, Any]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Okabe and Ito's, which the colour-blind can tell apart, with a brown for their yellow, which white swallows."""
INK, PAPER, BAND, GRID = "#000000", "#ffffff", "#f2f2f2", "#b0b0b0"
DARK = {
    "#0072b2": "#4da6e0", "#d55e00": "#ff8a42", "#009e73": "#2ec79b", "#cc79a7": "#e8a3cb", "#e69f00": "#f0b93a",
    "#56b4e9": "#a3dcff", "#8c6d31": "#c7a765", INK: "#e4e6e9", PAPER: "#1d2024", BAND: "#2a2e33", GRID: "#8a9199",
}  # fmt: skip
"""What each colour becomes on a dark screen."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "d")
WIDTH = 4.4
"""Inches of 72 points, which a browser shows as so many pixels: 317, on a phone that has 360."""
LETTERS = 50
"""In a line of a title or legend."""
STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.xmargin": 0.08,
    "grid.alpha": 0.3,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
NO_METADATA: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def plot(result: Result, folder: Path) -> list[Path]:
    """Return the files that were written. Without any there is no folder either."""
    written = []
    for name, text in drawn(result):
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / f"{slug(name)}.svg")
        written[-1].write_text(text.replace("</style>", f"{ALONE}{dark_rules()}</style>", 1), encoding="utf-8")
    return written


def drawn(result: Result) -> list[tuple[str, str]]:
    from matplotlib import rc_context

    with rc_context(STYLE):
        return [(name, as_svg(figure)) for name, figure in figures(result)]


def as_svg(figure: Any) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata=NO_METADATA)
    # A point is a pixel: a browser would make a third more of it, and the picture too wide.
    return re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', written.getvalue(), count=2)


ALONE = f"svg{{color-scheme:light dark;background:{PAPER};background:light-dark({PAPER},{DARK[PAPER]})}}"
"""Of a picture that is a file. Within a page the page decides."""


def dark_rules() -> str:
    """CSS that gives each colour its other one where the page is dark; what knows no CSS shows the light ones.

    No rule names what is around a picture: copies by `use`, which markers are, have nothing around them.
    """
    rules = [f"text{{fill:light-dark({INK},{DARK[INK]})}}"]
    for light, dark in DARK.items():
        for part in ("fill", "stroke"):
            rules.append(f'[style*="{part}: {light}"]{{{part}:light-dark({light},{dark}) !important}}')
    return "\n".join(rules)


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def figures(result: Result) -> Iterator[tuple[str, Any]]:
    series: dict[str, list[Result]] = {}
    for case in result["cases"]:
        if case["series"]:
            series.setdefault(case["series"], []).append(case)
    for name, cases in series.items():
        looks = Looks(result, cases[0]["operation"])
        if len({case["K"] for case in cases if any(of(case, subject) for subject in looks.names)}) > 1:
            yield f"growth {name}", growth(name, cases, result, looks)
    bases = {base: case["operation"] for case in result["cases"] for base in case["bases"]}
    for base, operation in bases.items():
        found = ratios(base, result, Looks(result, operation))
        if found is not None:
            yield f"ratios {base}", found


class Looks:
    """Colour, marker and line of a subject, the same in all pictures of an operation.

    Yours come first, and are thick; ours are full, too, and the others hollow.
    """

    def __init__(self, result: Result, operation: str) -> None:
        cases = [case for case in result["cases"] if case["operation"] == operation]
        timed = [s for case in cases for s in case["subjects"] if s["status"] == "measured"]
        self.yours, self.ours = ({s["name"] for s in timed if s.get(whose)} for whose in ("yours", "ours"))
        first = sorted(timed, key=lambda s: (s["name"] not in self.yours, s["name"] not in self.ours))
        self.names = list(dict.fromkeys(s["name"] for s in first))

    def colour(self, name: str) -> str:
        return COLOURS[self.names.index(name) % len(COLOURS)]

    def line(self, name: str) -> dict[str, Any]:
        number, yours = self.names.index(name), name in self.yours
        mine = yours or name in self.ours
        return {
            "color": self.colour(name),
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": "-" if mine else "--" if number % 2 else ":",
            "linewidth": 3.5 if yours else 2.0 if mine else 1.2,
            "markersize": 5 if mine else 4.5,
            "markerfacecolor": self.colour(name) if mine else PAPER,
            "zorder": 4 if yours else 3 if mine else 2,
        }

    def handles(self, used: Container[str]) -> list[Any]:
        """Of a legend, without error bars."""
        from matplotlib.lines import Line2D

        shown = {name: f"yours: {name}" if name in self.yours else name for name in self.names if name in used}
        return [
            Line2D([], [], label=textwrap.fill(label, LETTERS - 10), **self.line(name)) for name, label in shown.items()
        ]


def machine(result: Result) -> str:
    found = result["environment"]
    return found["gpu"] or f"{found['cpu']}, {count_noun(found['threads'], 'thread')}"


LINE, EDGE = 0.19, 0.4
"""Inches of a line of text, and around everything."""


def around(figure: Any, height: float, title: str, handles: Sequence[Any]) -> None:
    """A title above the axes, which get that many inches, and a legend below them."""
    lines = textwrap.wrap(title, LETTERS)
    rows = sum(1 + handle.get_label().count("\n") for handle in handles)
    figure.set_size_inches(WIDTH, height + LINE * (len(lines) + rows) + EDGE)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=STYLE["font.size"] + 0.5)
    figure.legend(handles=handles, loc="outside lower left", borderaxespad=0, labelspacing=0.3)


# --- over length ------------------------------------------------------------------------------------------------------


def growth(name: str, cases: list[Result], result: Result, looks: Looks) -> Any:
    """Time above peak memory, over T; all axes logarithmic."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

    with_memory = {case["K"] for case in cases for one in case["subjects"] if one["memory"]}
    panels = 2 if len(with_memory) > 1 else 1
    figure = Figure(layout="constrained")
    axes, used = figure.subplots(panels, 1, squeeze=False)[:, 0], set()
    cases = sorted(cases, key=lambda case: case["K"])
    for subject in looks.names:
        points = [(case["K"], found) for case in cases if (found := of(case, subject)) is not None]
        if not points:
            continue
        used.add(subject)
        style = looks.line(subject)
        known = [(length, found["memory"], found.get("peaks")) for length, found in points if found["memory"]]
        bars(axes[0], [(length, found["seconds"]["median"], found["seconds"]) for length, found in points], style)
        if known and panels == 2:
            bars(axes[1], known, style)
    lengths = sorted({case["K"] for case in cases}, reverse=True)
    labelled = lengths[:1]
    for length in lengths:  # labels do not touch that have a tenth of the axis between them
        if math.log(labelled[-1] / length) >= math.log(lengths[0] / lengths[-1]) / 10 > 0:
            labelled.append(length)
    for axis, title, unit in zip(axes, ("time of a call", "peak memory above the inputs"), "sB", strict=False):
        axis.set(xscale="log", yscale="log", xlabel="length T in tokens, 1k = 1,024")
        axis.set_title(title, loc="left")
        axis.xaxis.set_major_locator(FixedLocator(labelled[::-1]))
        axis.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value / 1024:.0f}k" if value % 1024 == 0 else f"{value:,.0f}")
        )
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(EngFormatter(unit))
        axis.yaxis.set_minor_formatter(NullFormatter())
    first = cases[0]
    sizes = f"B={first['B']}, H={first['H']}, D={first['D']}, {first['dtype']}"
    direction = "" if name.endswith(first["direction"]) else f", {first['direction']}"
    around(figure, 2.6 * panels, f"{name}{direction} ({sizes}; {machine(result)})", looks.handles(used))
    return figure


def bars(axis: Any, points: Sequence[tuple[int, float, Result | None]], style: dict[str, Any]) -> None:
    """Lengths, medians, and their intervals where there are some."""
    lengths, medians, _ = zip(*points, strict=True)
    below = [max(0.0, median - found["low"]) if found else 0.0 for _, median, found in points]
    above = [max(0.0, found["high"] - median) if found else 0.0 for _, median, found in points]
    axis.errorbar(lengths, medians, yerr=[below, above], capsize=2, elinewidth=0.8, **style)


def of(case: Result, subject: str) -> Result | None:
    return next((one for one in measured(case) if one["name"] == subject), None)


# --- ratios -----------------------------------------------------------------------------------------------------------

HEAD, STEP, GAP = 16, 6, 5
"""Points for a case's name, for a subject of it, and below them."""


def ratios(base: str, result: Result, looks: Looks) -> Any:
    """For every case a name, and below it the time of each peer over that of the base. None without any."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    rows = [(case["name"], shown(case, base, looks)) for case in result["cases"] if base in case["bases"]]
    rows = [(name, found) for name, found in rows if found]
    if not rows:
        return None
    figure = Figure(layout="constrained")
    axis, used, top = figure.subplots(), set(), 0.0
    for row, (name, found) in enumerate(rows):
        bottom = top + HEAD + STEP * len(found) + GAP
        if row % 2:
            axis.axhspan(top, bottom, color=BAND, linewidth=0, zorder=0)
        axis.annotate(name, (0.01, top + HEAD / 2), xycoords=("axes fraction", "data"), va="center")
        axis.vlines(1, top + HEAD, bottom, color=INK, linewidth=0.8, zorder=1)
        for number, (subject, ratio) in enumerate(found):
            spread = [[ratio["median"] - ratio["low"]], [ratio["high"] - ratio["median"]]]
            axis.errorbar(
                ratio["median"], top + HEAD + STEP * (number + 0.5), xerr=spread, capsize=1.5, elinewidth=0.8,
                **(looks.line(subject) | {"linestyle": "none"}),
            )  # fmt: skip
            used.add(subject)
        top = bottom
    axis.set(xscale="log", ylim=(top, 0), xlabel=textwrap.fill(f"time / time of {base}", LETTERS))
    axis.yaxis.set_major_locator(NullLocator())
    low, high = axis.get_xlim()
    decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine, coarse = (
        [digit * decade for decade in decades for digit in digits if low <= digit * decade <= high]
        for digits in ((1, 2, 5), (1,))
    )
    axis.xaxis.set_major_locator(FixedLocator(fine if len(fine) <= 7 else coarse))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.spines["left"].set_visible(False)
    title = f"Others against {base}: to the right of 1 it is ahead ({machine(result)})"
    around(figure, top / 72 + 0.4, title, looks.handles(used))
    return figure


def shown(case: Result, base: str, looks: Looks) -> list[tuple[str, Result]]:
    """The peers of a case, and the other bases, in the order of the legend."""
    found = [s for s in measured(case) if s["name"] != base and (not s["ours"] or s["name"] in case["bases"])]
    found.sort(key=lambda subject: looks.names.index(subject["name"]))
    return [(s["name"], s["ratios"][base]) for s in found if s["ratios"].get(base)]
