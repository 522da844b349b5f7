"""The project's tests on a mutant that the judge lets pass, which takes the definition's place in a run of pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from mutation.judging import PACKAGE, written
from mutation.mutants import Mutant

ROOT = PACKAGE.parent
TESTS = (
    "tests/test_definition_details.py",
    "tests/test_bad_input.py",
    "tests/test_vjp.py",
    "tests/test_annotations.py",
    "tests/test_blocks.py",
)
"""Those that run the definition, quick ones first."""
LEFT_OUT = "not torch_impl and not jax_impl and not planted_fault"
"""The ports, which do without the definition, and the tests of the tests."""
TIME_LIMIT = 600.0


def tested(mutant: Mutant, folder: Path) -> str:
    """The first test that fails, or "" if none does."""
    written(mutant, folder)
    paths = os.pathsep.join((str(folder), str(ROOT)))
    # Appended, not prepended: the mutant's folder comes before the one where the tests, and the definition, stand.
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--import-mode=append", "-p", "no:cacheprovider"]
    try:
        answer = subprocess.run(
            [*command, *(test for test in TESTS if (ROOT / test).exists()), "-k", LEFT_OUT],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "tests do not end"
    if answer.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", answer.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ends with {answer.returncode}"
