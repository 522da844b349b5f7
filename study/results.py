"""The results that the pages show: a stored run or, without one, the reason and the command that makes one.

These commands store a run:

    python -m conformance run --json build/conformance.json
    python -m study.storing build/conformance.json
    make bench
    python -m study.storing build/benchmarks/result.json
    python -m training reviews
    python -m training translation
    python -m training lockstep
    python -m study.storing build/training/reviews build/training/translation build/training/lockstep/report.json

A run of newer rules alone joins the stored one, with the seed, effort and versions that this has:

    python -m conformance run --seed SEED --only RULE --json build/conformance.json

`python -m study --conformance FILE --benchmarks FILE --divergences FILE` shows other results, also complete ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from conformance.reports.comparison import read_report
from conformance.side_by_side.sources import ROOT
from conformance.timing.results.result import read as read_benchmarks
from study import divergences
from study.agreement import Agreement, agreement
from study.divergences import Matrix
from study.timings import Timings, timings
from study.training import Training, training

FOLDER = ROOT / "study/results"
CONFORMANCE, BENCHMARKS, TRAINING = (FOLDER / f"{name}.json" for name in ("conformance", "benchmarks", "training"))
STORE = "python -m study.storing"
HOW_CONFORMANCE = f"python -m conformance run --json build/conformance.json && {STORE} build/conformance.json"
HOW_BENCHMARKS = f"make bench && {STORE} build/benchmarks/result.json"
HOW_TRAINING = f"make train && {STORE} build/training/reviews"

Found = TypeVar("Found")


class Stored(NamedTuple, Generic[Found]):
    """A result. missing: why there is none, as a sentence. how: the commands that make it."""

    content: Found | None
    missing: str
    how: str


class Results(NamedTuple):
    agreement: Stored[Agreement]
    timings: Stored[Timings]
    matrix: Stored[Matrix]
    training: Stored[Training]


def gather(
    conformance: Path = CONFORMANCE,
    benchmarks: Path = BENCHMARKS,
    matrix: Path = divergences.MATRIX,
    trained: Path = TRAINING,
) -> Results:
    """Everything that can be read; nothing is raised for the rest."""
    return Results(
        stored(conformance, "run of the judge", lambda path: agreement(read_report(path)), HOW_CONFORMANCE),
        stored(benchmarks, "benchmark", lambda path: timings(read_benchmarks(path)), HOW_BENCHMARKS),
        stored(matrix, "run of other libraries", divergences.matrix, divergences.HOW),
        stored(trained, "training run", training, HOW_TRAINING),
    )


@cache
def kept() -> Results:
    """Those that come with the sources."""
    return gather()


def stored(path: Path, name: str, read: Callable[[Path], Found | None], how: str) -> Stored[Found]:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if not path.exists():
        return Stored(None, f"No {name} is stored: {shown} does not exist.", how)
    try:
        return Stored(read(path), "", how)
    except (ValueError, OSError) as error:
        told = str(error).replace(str(path), str(shown))
        return Stored(None, f"The stored {name} cannot be shown: {told}", how)
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        # What has the name and version of a format, and not its fields.
        return Stored(None, f"The stored {name} cannot be shown: {shown} lacks a field of its format, {error!r}", how)
