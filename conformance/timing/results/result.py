"""A result as plain data: what `--json` writes, what `compare` and `plot` read. docs/benchmarks.md describes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from conformance.reports.files import write_whole
from conformance.timing.measure.ceilings import Measured, best_copy, best_product
from conformance.timing.measure.running import Entry
from conformance.timing.measure.statistics import LEVEL, Interval, interval, paired
from conformance.timing.timed_case import Case
from conformance.timing.verify.row_sampling import declared_roundings
from conformance.timing.work import Work

NAME, VERSION = "transformer-conformance benchmark", 1

Result = dict[str, Any]


def empty(environment: Result, settings: Result) -> Result:
    return {
        "schema": {"name": NAME, "version": VERSION},
        "written": now(),
        "finished": False,
        "environment": environment,
        "settings": settings | {"level": LEVEL},
        "ceilings": [],
        "cases": [],
        "scaling": [],
    }


def case_result(
    case: Case, work: Work, entries: Sequence[Entry], ceilings: Sequence[Measured], busy: str = ""
) -> Result:
    """busy: what other programs took of the processors, in words; empty if it was little."""
    inputs = [int(np.prod(case.shapes[name])) for name in case.inputs]
    measured = [entry for entry in entries if entry.measured]
    bases = [entry for entry in measured if entry.subject.base] or measured[:1]
    return {
        **asdict(case),
        **work._asdict(),
        "input_bytes": sum(inputs) * case.itemsize,
        "busy": busy,
        "bases": [entry.subject.name for entry in bases],
        "subjects": [subject_result(case, work, entry, bases, ceilings) for entry in entries],
    }


TIMED = (
    "clock", "judged", "first_call_seconds", "calls_per_trial", "seconds", "trials", "stolen", "repeated", "ratios",
    "flops_per_second", "bytes_per_second", "share", "memory", "peaks",
)  # fmt: skip
"""The fields of a subject that have a value only where it has a time."""


def subject_result(
    case: Case, work: Work, entry: Entry, bases: Sequence[Entry], ceilings: Sequence[Measured]
) -> Result:
    """Whatever failed or was left out has a reason, and no time at all."""
    start, subject = entry.start, entry.subject
    found: Result = {
        **{name: getattr(subject, name) for name in ("name", "ours", "yours")},
        **{name: getattr(entry, name) for name in ("status", "reason")},
        "form": start.form if start else "",
        "chosen": start.chosen if start else "",
        "notes": [*subject.notes, *(start.notes if start else ())],
        "conventions": subject.conventions if declared_roundings(subject.conventions, case.dtype) else {},
    }
    if not entry.measured or start is None:
        return found | dict.fromkeys(TIMED)
    seconds, peaks = entry.seconds, interval(entry.peaks) if entry.peaks else None
    return found | {
        "notes": found["notes"] + ([entry.memory_note] if entry.memory_note else []),
        "clock": start.clock,
        "judged": {"before": entry.before.worst, "trials": entry.during.worst, "after": entry.after.worst},
        "first_call_seconds": start.first,
        "calls_per_trial": entry.calls,
        "seconds": seconds._asdict(),
        "trials": entry.trial_seconds,
        "stolen": [None if trial is None else trial.stolen for trial in entry.trials],
        "repeated": entry.repeated,
        # Round by round: above 1 the base is ahead.
        "ratios": {base.subject.name: interval_data(paired(entry.trial_seconds, base.trial_seconds)) for base in bases},
        "flops_per_second": interval_data(None if work.flops is None else seconds.inverse(work.flops)),
        "bytes_per_second": seconds.inverse(work.bytes)._asdict(),
        "share": share(case, work, entry, seconds, ceilings),
        "memory": None if peaks is None else round(peaks.median),
        "peaks": interval_data(peaks),
    }


def interval_data(interval: Interval | None) -> Result | None:
    return None if interval is None else interval._asdict()


def share(case: Case, work: Work, entry: Entry, seconds: Interval, ceilings: Sequence[Measured]) -> Result | None:
    """Of the ceiling that is nearer: the best product, or the best copy of as many bytes as a trial has."""
    ceiling = {
        "product": (work.flops, best_product(ceilings, case.dtype)),
        "copy": (work.bytes, best_copy(ceilings, work.bytes * entry.calls)),
    }
    shares = {name: seconds.inverse(done / rate) for name, (done, rate) in ceiling.items() if done is not None and rate}
    if not shares:
        return None
    nearer = max(shares, key=lambda name: shares[name].median)
    return {"of": nearer} | shares[nearer]._asdict()


def device_memory(result: Result) -> int | None:
    """Of the GPU if the run was there; None where the system does not say."""
    there = result["environment"]
    found: int | None = there.get("gpu_memory") if result["settings"]["device"] == "cuda" else there["memory"]
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def save(result: Result, path: Path) -> None:
    """As a whole or not at all, with the time: a run that is broken off leaves the file of the case before."""
    result["written"] = now()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def refusal(path: Path) -> str:
    """Why no result can be written there, in a line; empty if one can. Leaves what is there as it is."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        beside.unlink()
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return f"{path} is a folder" if path.is_dir() else ""


def read(path: Path) -> Result:
    """ValueError says in a line why a file is no result that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, dict) or schema.get("name") != NAME:
        raise ValueError(f"{path} is no result of a benchmark")
    if schema.get("version") != VERSION:
        raise ValueError(f"{path} has version {schema.get('version')} of the format, and this reads {VERSION}")
    return dict(found)
