"""The command line, also as `python -m conformance`."""

from __future__ import annotations

import os

from conformance.runner.compiled_code import cache, keep_compiled_code


def main() -> None:
    keep_compiled_code()
    keep_notes()
    from conformance.cli import app

    app()


def keep_notes() -> None:
    """Hypothesis keeps notes in the working directory unless told otherwise. Set before Hypothesis is imported."""
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache() / "hypothesis"))


if __name__ == "__main__":
    main()
