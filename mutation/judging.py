"""The judge on mutants: every probe's cases are drawn, and their truth and bounds computed, once for all mutants."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from conformance.cases.declaration import EVERYTHING
from conformance.checks.check import Check
from conformance.checks.comparison import Finding, breaks
from conformance.checks.size_limits import SizeLimits
from conformance.judge.batches import plan_of_operations
from conformance.judge.trial import judge_questions
from conformance.oracle.reference import balls_available
from conformance.runner.in_process import Runner
from conformance.subjects.subject import NumpySubject
from mutation.calls import Calls, Functions, relevant
from mutation.mutants import ROOT, Mutant

CASES, SEED = 10, 20260101
"""Cases for each probe, times its weight: as many as `conformance run` draws."""
TIME_LIMIT = 10.0
"""Seconds for one case."""
PACKAGE = ROOT / "reference_numpy"


class Question(NamedTuple):
    """One case, or refused call, as a runner is asked it, and the definition's functions that run to answer it."""

    title: str
    check: Check[Any, Any]
    example: Any
    shared: Any
    functions: Functions


class Recorder:
    """Stands in a runner's place, and writes down what it is asked."""

    name, declaration, overrun = "recorder", EVERYTHING, 0

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, Any]] = []
        self.sizes = SizeLimits()

    def __call__(self, check: Check[Any, Any], example: Any, shared: Any) -> list[Finding]:
        self.asked.append((check, example, shared))
        return []


def questions() -> list[Question]:
    """All that a run asks of a subject; the definition answers it without a violation or warning."""
    balls_available()
    recorder: Any = Recorder()
    titles: list[str] = []
    for question in plan_of_operations():
        if question.kind == "frozen":
            continue
        judge_questions([question], [recorder], CASES, SEED)
        title = "refusals" if question.kind == "refusal" else f"{question.rule} {question.title}"
        titles += [title] * (len(recorder.asked) - len(titles))
    runner, result = Runner(NumpySubject()), []
    for title, (check, example, shared) in zip(titles, recorder.asked, strict=True):
        functions, findings = traced(runner, check, example, shared)
        if breaks(findings):
            raise RuntimeError(f"the definition itself does not pass {title}: {findings}")
        result.append(Question(title, check, example, shared, functions))
    return result


def traced(runner: Runner, check: Check[Any, Any], example: Any, shared: Any) -> tuple[Functions, list[Finding]]:
    with warnings.catch_warnings(), Calls() as calls:
        warnings.simplefilter("error")
        findings = runner(check, example, shared)
    return calls.functions, findings


def written(mutant: Mutant, folder: Path, name: str = "") -> None:
    """A copy of the mutant's package with its edit, in the folder, under its own name or another one."""
    package = mutant.file.partition("/")[0]
    for source in (ROOT / package).rglob("*.py"):
        path = source.relative_to(ROOT)
        text = mutant.text if str(path) == mutant.file else source.read_text()
        copy = folder / (name or package) / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(package, name) if name else text)


def judged(asked: list[Question], mutant: Mutant, folder: Path) -> str:
    """What the judge says against the mutant, a word or two; "" if it finds nothing. Runs in a process of its own."""
    written(mutant, folder, "mutant")
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    warnings.simplefilter("error")
    try:
        importlib.import_module("mutant")
    except Exception as error:
        return f"cannot be imported: {type(error).__name__}"
    runner = Runner(NumpySubject("mutant"), TIME_LIMIT)
    for question in relevant(mutant, asked):
        if breaks(runner(question.check, question.example, question.shared)):
            return question.title
    return ""
