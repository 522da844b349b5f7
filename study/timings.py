"""A stored benchmark on a page: its settings, a table for every case, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.results.findings import describe_cases
from benchmarks.results.plots import slug
from benchmarks.results.scaling import in_words
from conformance.side_by_side.sources import LABELS
from conformance.timing.results.case_table import (
    case_table,
    ceiling_lines,
    legend,
    milliseconds,
    other_lines,
    times,
    title_of,
)
from conformance.timing.results.ranking import describe_case
from conformance.timing.results.result import device_memory
from study.grids import Grid, grid, moment
from study.plots import Plots, plots

Result = dict[str, Any]
MEASURED, FAILED = "measured", "failed"


class Case(NamedTuple):
    """One case: findings and a table, those that failed with the reason, and what is to be said of the others."""

    name: str
    place: str  # on the page
    operation: str
    title: str
    findings: tuple[str, ...]
    table: Grid
    failed: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]


class Speed(NamedTuple):
    """A case in short. ours: for each implementation its time in words. other: the fastest library, or empty.

    ratios: its time over that of each base.
    """

    name: str
    place: str
    ours: tuple[str, ...]
    other: str
    other_time: str
    ratios: dict[str, str]


class Timings(NamedTuple):
    """about: what it was measured on and with. notes: what takes from the weight of the whole.

    findings: of all cases. of_operations: of the cases of each operation.
    """

    when: str
    about: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    legend: str
    ceilings: tuple[str, ...]
    cases: tuple[Case, ...]
    speeds: dict[str, tuple[Speed, ...]]  # by operation
    growth: tuple[str, ...]
    plots: Plots
    findings: tuple[str, ...]
    of_operations: dict[str, tuple[str, ...]]

    def bases(self, operation: str) -> list[str]:
        """The engines of ours that the others are divided by."""
        return list(dict.fromkeys(base for one in self.speeds[operation] for base in one.ratios))


def timings(result: Result) -> Timings:
    cases = result["cases"]
    operations = dict.fromkeys(case["operation"] for case in cases)
    speeds = {one: tuple(speed(case) for case in cases if case["operation"] == one) for one in operations}
    return Timings(
        moment(result["written"]), about(result), notes(result),
        legend(result["settings"]["level"], result["settings"]["rounds"][1]), tuple(ceiling_lines(result["ceilings"])),
        tuple(map(case_of, cases)), speeds, tuple(in_words(cases, device_memory(result))), plots(result),
        tuple(describe_cases(cases)),
        {one: tuple(describe_cases([case for case in cases if case["operation"] == one])) for one in operations},
    )  # fmt: skip


def about(result: Result) -> tuple[tuple[str, str], ...]:
    there, settings = result["environment"], result["settings"]
    memory = device_memory(result)
    told = {
        "written": moment(result["written"]),
        "GPU": there["gpu"],
        "processor": there["cpu"],
        "threads": f"{there['threads']} of {there['processors']} processors",
        "memory": None if memory is None else f"{memory / 1e9:.0f} GB",
        "system": there["system"],
        "versions": ", ".join([f"python {there['python']}", *(f"{n} {v}" for n, v in there["versions"].items())]),
        "commit": there["commit"] and there["commit"].replace("+", ", with changed files"),
        "load before": None if there["load"] is None else f"{there['load']:.1f}",
        "seed": str(settings["seed"]),
    }
    return tuple((name, text) for name, text in told.items() if text)


def notes(result: Result) -> tuple[str, ...]:
    """What takes from the weight of the result: remarks that were stored with it, and what its fields say."""
    settings, there, cases = result["settings"], result["environment"], result["cases"]
    failed = [(case["name"], one["name"]) for case in cases for one in case["subjects"] if one["status"] == FAILED]
    found = [*result.get("remarks", ())]
    if not result["finished"]:
        found.append(f"The run was interrupted: it finished {counted(len(cases), 'case')}.")
    if settings["quick"]:
        found.append("A quick run (--quick): small cases only.")
    if settings["only"]:
        found.append(f"The run was limited to names with {quoted(settings['only'])}.")
    if there["load"] is not None and there["load"] > 0.5 * there["processors"]:
        found.append(f"Other programs used the machine (load {there['load']:.1f}): intervals are wide.")
    if failed:
        where = "; ".join(f"{name} at {case}" for case, name in failed)
        found.append(f"{len(failed)} failed, and have no time: {where}.")
    return tuple(found)


def quoted(words: Sequence[str]) -> str:
    return ", ".join(f"\u201c{word}\u201d" for word in words)


def counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def case_of(case: Result) -> Case:
    subjects = case["subjects"]
    failed = tuple((one["name"], one["reason"]) for one in subjects if one["status"] == FAILED)
    below = (line.plain for line in other_lines(case))
    remarks = tuple(line for line in below if not line.startswith("FAILED"))
    shown = title_of(case), tuple(describe_case(case)), grid(case_table(case))
    return Case(case["name"], place_of(case), case["operation"], *shown, failed, remarks)


def place_of(case: Result) -> str:
    return f"case-{slug(case['name'])}"


def speed(case: Result) -> Speed:
    others = [one for one in case["subjects"] if one["status"] == MEASURED and not one["ours"]]
    times_of_ours = tuple(own(case, one) for one in LABELS)
    if not others:
        return Speed(case["name"], place_of(case), times_of_ours, "", "", {})
    first = min(others, key=lambda one: one["seconds"]["median"])
    ratios = {base: times(first["ratios"].get(base), True) for base in case["bases"]}
    beside = milliseconds(first["seconds"])
    return Speed(case["name"], place_of(case), times_of_ours, first["name"], beside, ratios)


def own(case: Result, package: str) -> str:
    """What an implementation takes by default, in milliseconds, or why that is not known."""
    found = [one for one in case["subjects"] if one["ours"] and one["name"].split(",")[0] == package]
    found.sort(key=lambda one: (one["name"] not in case["bases"], one["status"] != MEASURED))
    if not found:
        return ""
    return milliseconds(found[0]["seconds"]) if found[0]["status"] == MEASURED else found[0]["status"]
