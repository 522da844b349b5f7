"""Measure all ways and numbers of ranks, predict growth, and print both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from benchmarks.cases import causal
from benchmarks.ranks.formulas import BASE, ONE, WAYS
from benchmarks.ranks.growth import Machine, predict_growth, simulate_attention
from benchmarks.ranks.measuring import Ranks, measure_case, measure_machine, start_ranks
from conformance.timing.measure.environment import environment
from conformance.timing.measure.processes import processors
from conformance.timing.results.result import now, save
from conformance.timing.terminal import console, say
from conformance.timing.timed_case import BOTH, Case, both_ways

NAME, VERSION = "transformer-conformance benchmark of ranks", 1
COUNTS = (1, 2, 4, 8)
MANY = (2, 4, 8, 16, 64, 256, 1024)
LENGTHS, QUICK_LENGTHS = (1024, 2048, 4096, 8192), (256, 512)
SIZES, QUICK_SIZES = (128, 256, 512, 1024, 2048, 4096), (128, 512, 1024)
"""Positions of a piece whose pairs are timed on one process."""

Row = dict[str, Any]


def benchmark_ranks(quick: bool, lengths: Sequence[int], tokens: int, seed: int, json: Path | None) -> Row:
    """Measure, predict, print, and write the result to `json`; Failed where a result or a count of bytes is wrong."""
    counts, sizes = (COUNTS[:3], QUICK_SIZES) if quick else (COUNTS, SIZES)
    settings = {"seed": seed, "quick": quick, "lengths": [*lengths], "tokens": tokens}
    say(f"seed {seed}; one thread a rank, and {len(processors())} processors for all ranks")
    result: Row = {
        "schema": {"name": NAME, "version": VERSION}, "written": now(),
        "environment": environment("cpu", 1), "settings": settings, "rows": [], "machine": {}, "growth": [],
    }  # fmt: skip
    with start_ranks(counts) as ranks:
        for case in (one for length in lengths for one in both_ways(causal(length))):
            rows = measure_rows(ranks, case, counts, seed)
            result["rows"] += rows
            print_rows(case.name, rows)
            if json is not None:
                save(result, json)
        machine = measure_machine(ranks, sizes, seed, say)
    result["machine"] = machine._asdict()
    # Of each way, what a rank needs for a position of its own: by the largest run, where fixed costs count least.
    per_position = {
        (row["way"], row["direction"]): row["memory"] * row["ranks"] / row["length"]
        for row in result["rows"] if row["way"] != BASE
    }  # fmt: skip
    for case in both_ways(causal(tokens)):
        memory = {way: found for (way, direction), found in per_position.items() if direction == case.direction}
        result["growth"] += predict_growth(machine, case, MANY, memory)
    print_prediction(machine, result["rows"])
    print_growth(machine, result["growth"], tokens)
    if json is not None:
        save(result, json)
    return result


def measure_rows(ranks: Ranks, case: Case, counts: Sequence[int], seed: int) -> list[Row]:
    rows = []
    for name, way in WAYS.items():
        for count in counts[:1] if way.function == ONE else counts:
            rows.append(measure_case(ranks, case, name, way, count, seed))
    return rows


def print_rows(name: str, rows: Sequence[Row]) -> None:
    alone, *_ = rows
    one = {row["way"]: row["memory"] for row in rows if row["ranks"] == 1}
    cells = [
        [
            row["way"], str(row["ranks"]), f"{1e3 * row['seconds']:.3g}", f"{alone['seconds'] / row['seconds']:.2f}",
            megabytes(row["bytes"]), megabytes([row["memory"]]), f"{row['memory'] / one[row['way']]:.2f}",
            f"{row['error']:.3f}",
        ]
        for row in rows
    ]  # fmt: skip
    print_table(name, ("way", "ranks", "ms", "speed", "MB sent", "peak MB", "peak / 1 rank", "error"), cells)


def print_prediction(machine: Machine, rows: Sequence[Row]) -> None:
    """Print what the simulation says beside what was measured, for 2 to 4 ranks."""
    cells = []
    for row in rows:
        if 2 <= row["ranks"] <= 4:
            case = both_ways(causal(row["length"]))[row["direction"] == BOTH]
            seconds = simulate_attention(machine, case, WAYS[row["way"]], row["ranks"])
            times = (f"{1e3 * row['seconds']:.3g}", f"{1e3 * seconds:.3g}", f"{row['seconds'] / seconds:.2f}")
            cells.append([f"{case.name}, {row['way']}", str(row["ranks"]), *times])
    there = len(processors())
    print_table(
        f"Measured and simulated: every simulated rank has a processor of its own; here are {there} for all",
        ("case", "ranks", "measured ms", "simulated ms", "measured / simulated"), cells,
    )  # fmt: skip


def print_growth(machine: Machine, rows: Sequence[Row], tokens: int) -> None:
    say(f"a message takes {1e6 * machine.latency:.0f} µs, and {machine.bandwidth / 1e9:.2f} GB in a second")
    cells = [
        [
            f"{row['way']}, {row['direction']}", str(row["ranks"]), f"{row['seconds']:.4g}", f"{row['efficiency']:.3f}",
            megabytes(row["bytes"]), megabytes([row["memory"]]),
        ]
        for row in rows
    ]  # fmt: skip
    headings = ("way", "ranks", "seconds", "efficiency", "MB sent", "peak MB")
    print_table(f"Simulated: causal, {tokens} tokens, a device for each rank", headings, cells)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console.print(title, style="bold")
    first, *others = headings
    table = Table(Column(first), *(Column(name, justify="right") for name in others), box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def megabytes(counts: Sequence[int]) -> str:
    return " + ".join(f"{count / 1e6:.4g}" for count in counts)
