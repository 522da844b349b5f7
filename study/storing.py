"""`python -m study.storing FILE...`: store the part of a result that the pages show, in study/results.

A report of the judge loses its replay data. A benchmark loses the single trials and the parts of intervals that no page
shows: of a rate or a share it keeps the median, and of a ratio not the level and count, which are those of the time.
Its numbers keep six digits. `conformance compare`, and `python -m benchmarks compare` and `plot`, still read both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.results.result import read as read_benchmark
from conformance.reports.comparison import read_report
from study.results import BENCHMARKS, CONFORMANCE

Result = dict[str, Any]
RATIO = ("median", "low", "high")
RATE = ("median",)
SHOWN = {
    "seconds": (*RATIO, "level", "n"), "flops_per_second": RATE, "bytes_per_second": RATE, "share": ("of", "median"),
    "peaks": (*RATIO, "level"),
}  # fmt: skip
"""What is kept of an interval, by the field that it stands in; of any other what is kept of a ratio."""


def stored_report(path: Path) -> Result:
    report = read_report(path)
    subjects = [one | {"violations": [without_replay(found) for found in one["violations"]]}
                for one in report["subjects"]]  # fmt: skip
    return report | {"subjects": subjects}


def without_replay(violation: Result) -> Result:
    return violation | {"replay": None, "replay_file": None, "replay_command": None}


def stored_benchmark(path: Path) -> Result:
    return dict(lighter(read_benchmark(path)))


def lighter(value: Any, name: str = "") -> Any:
    """name: the field that it stands in."""
    if name == "trials" and isinstance(value, list):
        return None
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [lighter(one) for one in value]
    if isinstance(value, dict):
        kept = SHOWN.get(name, RATIO) if "median" in value else value.keys()
        return {key: lighter(one, key) for key, one in value.items() if key in kept}
    return value


KINDS = {CONFORMANCE: stored_report, BENCHMARKS: stored_benchmark}


def store(path: Path, folder: Path) -> Path:
    """The file that was written. ValueError for what is neither a report nor a benchmark."""
    refusals = []
    for kind, read in KINDS.items():
        try:
            found = read(path)
        except ValueError as error:
            refusals.append(str(error))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / kind.name
        # A line for every case or subject, so that a change can be read.
        text = json.dumps(found, separators=(",", ":"), allow_nan=False)
        target.write_text(text.replace('{"name":', '\n{"name":') + "\n", encoding="utf-8")
        return target
    raise ValueError("; ".join(dict.fromkeys(refusals)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study.storing", description="Store results for the pages.")
    parser.add_argument("files", type=Path, nargs="+", help="results of conformance run or benchmarks, by --json")
    parser.add_argument("--to", type=Path, default=CONFORMANCE.parent, help="the folder for the stored results")
    given = parser.parse_args()
    for path in given.files:
        try:
            target = store(path, given.to)
        except ValueError as error:
            parser.error(str(error))
        print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
