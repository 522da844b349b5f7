"""A case as a table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from conformance.timing.measure.memory import gigabytes
from conformance.timing.measure.other_programs import TOLERATED

Result = dict[str, Any]


INTERVALS, BESIDE = 150, 104
"""Columns of a terminal from which on intervals are shown, and what stands beside the times."""


def case_table(case: Result, width: int = INTERVALS) -> Table:
    """The measured subjects, the fastest first; how much of each depends on the width of the terminal."""
    wide, beside, subjects = width >= INTERVALS, width >= BESIDE, measured(case)
    columns: list[tuple[str, list[str]]] = []
    if wide:
        columns.append(("ms", [milliseconds(one["seconds"]) for one in subjects]))
    else:
        # How far the interval goes from the median, on the side where it goes farther.
        spent = [(one["seconds"]["low"], one["seconds"]["median"], one["seconds"]["high"]) for one in subjects]
        columns.append(("ms", [f"{median * 1e3:.3g}" for _, median, _ in spent]))
        columns.append(("±", [f"{max(high / median - 1, 1 - low / median):.0%}" for low, median, high in spent]))
    for base in case["bases"]:
        heading = f"time / {base}" if wide else f"/ {base.partition(',')[0].partition('_impl')[0]}"
        columns.append((heading, [times(one["ratios"].get(base), wide) for one in subjects]))
    unit, rate = ("GB/s", "bytes_per_second") if case["flops"] is None else ("GFLOP/s", "flops_per_second")
    columns.append((unit, [f"{one[rate]['median'] / 1e9:.3g}" for one in subjects]))
    shares = [one["share"] and (f"{one['share']['median']:.0%}", one["share"]["of"]) for one in subjects]
    reached = [" ".join(share if wide else share[:1]) if share else "" for share in shares]
    columns.append(("ceiling" if beside else "share", reached))
    if beside:
        peaks = [one["memory"] for one in subjects]
        if any(one["memory"] is not None for one in case["subjects"]):
            columns.append(("memory", ["" if peak is None else size(peak) for peak in peaks]))
        columns.append(("first call", [f"{one['first_call_seconds']:.2g} s" for one in subjects]))
        columns.append(("error", [f"{max(one['judged'].values()):.2f}" for one in subjects]))
    headings = [Column(heading, justify="right", no_wrap=True) for heading, _ in columns]
    options: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "collapse_padding": True}
    table = Table(Column("subject", no_wrap=True), *headings, **options)
    for subject, *cells in zip(subjects, *(texts for _, texts in columns), strict=True):
        table.add_row(subject["name"], *cells, style="bold" if subject["ours"] else "")
    return table


def measured(case: Result) -> list[Result]:
    """The subjects that have a time, the fastest first."""
    found = [subject for subject in case["subjects"] if subject["status"] == "measured"]
    return sorted(found, key=lambda subject: subject["seconds"]["median"])


def title_of(case: Result) -> str:
    if case["operation"] == "layer_norm":
        return f"{case['name']} ({case['dtype']}; {case['bytes'] / 1e6:.1f} MB)"
    if case["operation"] == "mixture_of_experts":
        return f"{case['name']} (D={case['D']}, F={case['F']}, {case['dtype']}; {case['flops'] / 1e9:.3g} GFLOP)"
    sizes = ", ".join(f"{name}={case[name]}" for name in ("B", "H", "G", "Q", "K", "D"))
    every = case["B"] * case["H"] * case["Q"] * case["K"]
    share = f"{case['pairs'] / every:.0%} of the pairs" if case["pairs"] < every else "all pairs"
    return f"{case['name']} ({sizes}, {case['dtype']}; {share}, {case['flops'] / 1e9:.3g} GFLOP)"


def milliseconds(seconds: Result) -> str:
    low, median, high = (f"{seconds[name] * 1e3:.3g}" for name in ("low", "median", "high"))
    return f"{median} [{low}, {high}]"


def times(ratio: Result | None, wide: bool) -> str:
    if ratio is None:
        return ""
    if not wide:
        return f"{ratio['median']:.2f}" if ratio["median"] < 100 else f"{ratio['median']:.0f}"
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def size(count: int) -> str:
    return gigabytes(count) if count >= 1e9 else f"{count / 1e6:.1f} MB"


def other_lines(case: Result) -> list[Text]:
    """One line for everything that has no time, and for what is to be said of the others."""
    styles = {"failed": "bold red", "not credible": "yellow", "left out": "dim"}
    lines = []
    for statuses in (("failed", "not credible"), ("left out",)):
        for one in case["subjects"]:
            if (status := one["status"]) in statuses:
                start = status if status == "left out" else status.upper()
                lines.append(Text(f"{start} {one['name']}: {one['reason']}", style=styles[status]))
    for subject in (one for one in case["subjects"] if one["status"] == "measured"):
        told = [*subject["notes"], *([f"auto took {subject['chosen']}"] if subject["chosen"] else [])]
        if subject["conventions"]:
            declared = ", ".join(f"{name}={value}" for name, value in subject["conventions"].items())
            told.append(f"judged under {declared}")
        lines += [Text(f"{subject['name']}: {one}", style="dim") for one in told]
    return lines + [Text(line, style="dim") for line in (line_of_the_host(case), line_of_others(case)) if line]


def line_of_others(case: Result) -> str:
    """Return what other programs on the machine do to the ratios; empty if there were none."""
    busy = case.get("busy")
    if not busy:
        return ""
    return f"other programs used this machine ({busy}): times are too long, and ratios may be wrong; repeat the run"


def busy_cases(cases: Sequence[Result]) -> str:
    """Return in how many cases other programs used the machine; empty if they did not."""
    busy = sum(bool(case.get("busy")) for case in cases)
    return f"other programs used the machine in {busy} of {len(cases)} cases" if busy else ""


def line_of_the_host(case: Result) -> str:
    """What the host of a virtual machine took, and what was done about it; empty if it took nothing."""
    timed = [subject for subject in case["subjects"] if subject["status"] == "measured"]
    told = {one["name"]: [share for share in one.get("stolen") or [] if share is not None] for one in timed}
    disturbed = {name: sum(share > TOLERATED for share in shares) for name, shares in told.items()}
    repeated, left = sum(one.get("repeated") or 0 for one in timed), sum(disturbed.values())
    if not repeated and not left:
        return ""
    start = f"the host took processor time: {repeated} repetition{'s' * (repeated != 1)}, and "
    if not left:
        return f"{start}none of the trials that count is disturbed"
    whose = ", ".join(f"{number} of {name}" for name, number in disturbed.items() if number)
    count = sum(map(len, told.values()))
    return f"{start}still {left} of the {count} trials that count are disturbed: {whose}; their times are too long"


def legend(level: float, rounds: int) -> str:
    return (
        f"How to read the tables. ms: median time of a call, with an interval of at least {level:.0%} from 6 rounds on "
        f"(here at most {rounds}). time / NAME: the time over that of NAME, round by round; above 1, NAME is ahead. "
        "NAME is our default engine; if it has no time, the first subject that has one. "
        "ceiling, or share: of the best matrix product of any framework here, or of the best copy of about as many "
        "bytes as a trial moves. memory: peak of a call above its inputs. first call: with "
        "compilation. error: the largest error ratio; at most 1 conforms."
    )


def ceiling_lines(ceilings: list[Result]) -> list[str]:
    """The best of every framework."""
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for one in ceilings:
        key, size = (one["kind"], one["dtype"]), one["size"]
        sized = f"{size} x {size}" if one["kind"] == "product" else f"{size / 1e6:.3g} MB"
        best[key] = max(best.get(key, (0.0, "")), (max(one["rates"]), f"{one['framework']}, {sized}"))
    told = {"product": ("GFLOP/s", "matrix product"), "copy": ("GB/s", "copy")}
    return [
        f"best {told[kind][1]} ({dtype}): {rate / 1e9:.0f} {told[kind][0]} ({where})"
        for (kind, dtype), (rate, where) in best.items()
    ]
