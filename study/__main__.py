"""`python -m study --out DIR`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from conformance.side_by_side.drift import drifts
from conformance.side_by_side.sources import ROOT
from study import divergences
from study.results import BENCHMARKS, CONFORMANCE, TRAINING, gather
from study.site import build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study", description="Write the study pages.")
    parser.add_argument("--out", type=Path, default=Path("build/study"), help="the folder for the pages")
    parser.add_argument("--base", help="address of the repository's files, for links to lines of the source")
    parser.add_argument("--no-examples", action="store_true", help="skip the worked examples, and load no framework")
    stored = (
        ("--conformance", CONFORMANCE, "the report of `conformance run --json`"),
        ("--benchmarks", BENCHMARKS, "the result of `python -m benchmarks --json`"),
        ("--training", TRAINING, "training runs that `python -m study.storing` has stored"),
        ("--divergences", divergences.MATRIX, "the matrix of `make peers`"),
    )
    for option, default, what in stored:
        told = f"{what}; by default the stored one"
        parser.add_argument(option, type=Path, default=default, metavar="FILE", help=told)
    given = parser.parse_args()
    if not (ROOT / "SPEC.md").is_file():
        parser.error("the pages need the documents, examples and tests of the project: run it in a clone")
    how = "" if given.no_examples else ", with worked examples: this takes minutes"
    print(f"Building {given.out}{how}", flush=True)
    results = gather(given.conformance, given.benchmarks, given.divergences, given.training)
    written = build(given.out, given.base, not given.no_examples, results)
    for line in alignment_lines(drifts()):
        print(line)
    for one in results:
        if one.missing:
            print(f"{one.missing} {one.how} makes one.")
    if given.base is None:
        print("Links to sources lead to this clone. To publish the pages, give --base, the address of the files.")
    print(f"{len(written)} pages in {given.out}; start with index.html")


def alignment_lines(found: Sequence[str]) -> list[str]:
    """Return what a reader of the pages should know of steps that stand alone; nothing where the columns align.

    Args:
        found: the differences, as `conformance.side_by_side.drift.drifts` returns them.
    """
    if not found:
        return []
    first = (
        "The code is shown as it is, and no number changes. But here the columns do not align, and the page gives no "
        "reason (conformance/side_by_side/idioms.toml):"
    )
    return [first, *(f"  {message}" for message in found)]


if __name__ == "__main__":
    main()
