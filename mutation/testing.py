"""The project's tests on a mutant that the judge lets pass, which takes the definition's place in a run of pytest."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from mutation.calls import Functions, relevant
from mutation.judging import written
from mutation.mutants import ROOT, Mutant
from mutation.recording import VARIABLE
from mutation.results import Results

FILES = (
    "definition/test_details",
    "definition/test_special_values",
    "definition/test_bad_input",
    "definition/test_tape",
    "definition/test_vjp",
    "definition/test_annotations",
    "definition/test_blocks",
    "models/test_models",
    "models/test_masks",
    "models/test_dropout",
    "models/test_gradients",
    "models/test_fitting",
    "models/test_caches",
    "models/test_decoding",
    "models/test_sampling",
    "models/test_generation",
    "models/test_beam_search",
    "models/test_checkpoints",
    "models/test_dialects",
    "models/test_details",
)
LEFT_OUT = "not torch_impl and not jax_impl and not ((fault or lost) and (caught or found))"
"""The ports, which do without the definition, and the tests of the tests."""
FIXED = ("-q", "--import-mode=append", "--assert=plain", "-p", "no:cacheprovider")
"""Appended, not prepended: the folder where the tests stand, and the definition, comes last. Plain: starts faster."""
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""No plugin changes the order of the tests, or costs time."""
SLOW = 1.0
"""Seconds; tests that take longer are left out, because every mutant that lives would wait for them."""
PATIENCE = 20
"""A test may take this many times the seconds that it takes without a mutant, and as many seconds more."""
LIKELY = 5
"""So many tests are tried before all others: most edits of one function are noticed by the same few."""
TIME_LIMIT = 1800.0
"""Seconds for all tests of one mutant, should one of them neither end nor compute."""
PREPARED = ("jax", "numpy", "safetensors.numpy", "safetensors.torch", "scipy.special", "tokenizers", "torch")
"""What the tests import, and no mutant changes: loaded once, for all mutants."""


class Test(NamedTuple):
    """A test by its name for pytest; the functions that it calls, none where it starts a process that does."""

    name: str
    seconds: float
    functions: Functions


def tests(slow: float) -> list[Test]:
    """The tests that run the definition and take less than `slow` seconds, quick ones first; all of them pass."""
    names = [f"tests/{name}.py" for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder, "calls.json")
        answer = subprocess.run(
            [sys.executable, "-m", "pytest", *FIXED, "-k", LEFT_OUT, "-p", "mutation.recording", *names],
            cwd=ROOT,
            env=os.environ | ALONE | {VARIABLE: str(calls)},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise RuntimeError(f"the tests fail without any mutant:\n{answer.stdout[-3000:]}")
        recorded = json.loads(calls.read_text())
    found = [Test(name, seconds, frozenset(map(tuple, functions))) for name, (seconds, functions) in recorded.items()]
    return sorted((test for test in found if test.seconds < slow), key=lambda test: test.seconds)


def prepare() -> None:
    for name in PREPARED:
        importlib.import_module(name)
    gc.freeze()  # or every child would go through what was loaded, in search of garbage


def tested(known: list[Test], results: Results, mutant: Mutant, folder: Path) -> str:
    """The first test that fails, or "" if none does. Runs in a process of its own, which is good for nothing else.

    The tests that killed other mutants of the same function come first, in a run of their own.
    """
    written(mutant, folder)
    put_first(folder)
    settings.register_profile("mutation", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutation")
    chosen, killers = relevant(mutant, known), results.killers(mutant)
    likely = sorted((test for test in chosen if test.name in killers), key=lambda test: -killers[test.name])[:LIKELY]
    return failing(likely) or failing([test for test in chosen if test not in likely])


def failing(tests: list[Test]) -> str:
    """The first of these tests that fails, or what else stops them; "" if nothing does."""
    if not tests:
        return ""
    failure = FirstFailure({test.name: PATIENCE * (1 + test.seconds) for test in tests})
    ended = pytest.main([*FIXED, "-x", *(test.name for test in tests)], plugins=[failure])
    return failure.name or ("" if ended == pytest.ExitCode.OK else f"pytest ends with {int(ended)}")


def put_first(folder: Path) -> None:
    """The project's packages are imported anew, here and by processes started from here; the folder's come first."""
    for name in list(sys.modules):
        place = getattr(sys.modules[name], "__file__", None) or ""
        if place.startswith(f"{ROOT}/") and not place.startswith((sys.prefix, str(Path(__file__).parent))):
            del sys.modules[name]
    os.chdir(ROOT)
    sys.path[:0] = [str(folder), str(ROOT)]
    os.environ |= ALONE | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


class FirstFailure:
    """A plugin for pytest: the name of the first test that fails, or that takes more than its seconds."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.name = seconds, ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        def over(*signal_and_frame: Any) -> None:
            self.noted(f"{item.nodeid} does not end")
            raise KeyboardInterrupt  # which neither the test nor Hypothesis catches

        signal.signal(signal.SIGPROF, over)
        signal.setitimer(signal.ITIMER_PROF, self.seconds[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.noted(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.noted(report.nodeid)

    def noted(self, name: str) -> None:
        self.name = self.name or name
