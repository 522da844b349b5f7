"""`python -m study --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from study import divergences
from study.drift import drifts
from study.results import BENCHMARKS, CONFORMANCE, gather
from study.site import build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study", description="NumPy, PyTorch and JAX side by side.")
    parser.add_argument("--out", type=Path, default=Path("build/study"), help="the folder for the pages")
    parser.add_argument("--base", help="address of the repository's files, for links to lines of the source")
    parser.add_argument(
        "--no-examples", action="store_true", help="leave out the worked examples, and load no framework"
    )
    stored = (
        ("--conformance", CONFORMANCE, "what `conformance run --json` wrote"),
        ("--benchmarks", BENCHMARKS, "what `python -m benchmarks --json` wrote"),
        ("--divergences", divergences.MATRIX, "what `make peers` wrote"),
    )
    for option, default, what in stored:
        told = f"{what}; a stored one unless given"
        parser.add_argument(option, type=Path, default=default, metavar="FILE", help=told)
    given = parser.parse_args()
    results = gather(given.conformance, given.benchmarks, given.divergences)
    written = build(given.out, given.base, not given.no_examples, results)
    for message in drifts():
        print(f"the columns do not align: {message}")
    for one in results:
        if one.missing:
            print(f"{one.missing} {one.how} makes one.")
    print(f"{len(written)} pages in {given.out}, of which index.html is the first")


if __name__ == "__main__":
    main()
