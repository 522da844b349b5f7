"""`python -m study --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from study.drift import drifts
from study.site import build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study", description="NumPy, PyTorch and JAX side by side.")
    parser.add_argument("--out", type=Path, default=Path("build/study"), help="the folder for the pages")
    parser.add_argument("--base", help="address of the repository's files, for links to lines of the source")
    parser.add_argument(
        "--no-examples", action="store_true", help="leave out the worked examples, and load no framework"
    )
    given = parser.parse_args()
    written = build(given.out, given.base, not given.no_examples)
    for message in drifts():
        print(f"the columns do not align: {message}")
    print(f"{len(written)} pages in {given.out}, of which index.html is the first")


if __name__ == "__main__":
    main()
