"""The command line, also as `python -m conformance`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


def main() -> None:
    keep_compiled_code()
    keep_notes()
    from conformance.cli import app

    app()


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "transformer-conformance"


def keep_notes() -> None:
    """Hypothesis keeps notes in the working directory unless told otherwise. Set before Hypothesis is imported."""
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache() / "hypothesis"))


def keep_compiled_code() -> None:
    """JAX compiles for every new shape; the next run finds it all compiled. Set before JAX is imported.

    JAX writes its files in place, so a process may read one that another is still writing: it says so and compiles.
    """
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


if __name__ == "__main__":
    main()
