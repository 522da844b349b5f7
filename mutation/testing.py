"""The project's tests on a mutant that the judge lets pass, which takes the definition's place in a run of pytest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from mutation.calls import Functions
from mutation.judging import written
from mutation.mutants import ROOT, Mutant
from mutation.recording import VARIABLE

FILES = ("definition_details", "special_values", "bad_input", "vjp", "annotations", "blocks")
LEFT_OUT = "not torch_impl and not jax_impl and not planted_fault"
"""The ports, which do without the definition, and the tests of the tests."""
TIME_LIMIT = 900.0


class Test(NamedTuple):
    """A test by its name for pytest; the functions that it calls, none where it starts a process that does."""

    name: str
    seconds: float
    functions: Functions


def pytest(names: list[str], *options: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest that imports from the folder `before`, if one is given, rather than from the project's."""
    paths = os.pathsep.join((*([before] if before else []), str(ROOT)))
    # Appended, not prepended: the folder where the tests stand, and the definition, comes last.
    fixed = ["-q", "--import-mode=append", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *fixed, *options, *names],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )


def tests() -> list[Test]:
    """The tests that run the definition, quick ones first; all of them pass."""
    names = [f"tests/test_{name}.py" for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder, "calls.json")
        answer = pytest(names, "-k", LEFT_OUT, "-p", "mutation.recording", **{VARIABLE: str(calls)})
        if answer.returncode != 0:
            raise RuntimeError(f"the tests fail without any mutant:\n{answer.stdout[-3000:]}")
        recorded = json.loads(calls.read_text())
    found = [Test(name, seconds, frozenset(map(tuple, functions))) for name, (seconds, functions) in recorded.items()]
    return sorted(found, key=lambda test: test.seconds)


def tested(known: list[Test], mutant: Mutant, folder: Path) -> str:
    """The first test that fails, or "" if none does."""
    written(mutant, folder)
    place = (mutant.file, mutant.function)
    called = {function for test in known for function in test.functions}
    names = [t.name for t in known if not t.functions or place in t.functions or place not in called]
    try:
        answer = pytest(names, "-x", before=str(folder))
    except subprocess.TimeoutExpired:
        return "tests do not end"
    if answer.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", answer.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ends with {answer.returncode}"
