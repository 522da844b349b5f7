"""What many tests share: the three implementations, cases, checks of a function, and the names of the judge.

A test imports from here what it needs of the judge beside its public names, unless it is about that module itself: a
module that is renamed is then renamed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from conformance import check
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration, Sizes
from conformance.cases.expectations import Planted, allowed_pairs
from conformance.cases.facts import operation_facts
from conformance.cases.signatures import declaration_of
from conformance.checks.catalogue import AGREEMENT, CHECKS, Probe, truth_and_bounds
from conformance.checks.comparison import Finding, judge
from conformance.checks.findings import Threshold
from conformance.checks.results import Results, Violation
from conformance.cli import app
from conformance.cli.console import console
from conformance.diagnosis.cause import Cause
from conformance.judge.plan import list_questions
from conformance.judge.report import Report
from conformance.judge.trial import ask_questions, make_violation
from conformance.mistakes.catalogue import known_mistakes
from conformance.mistakes.mistake import Mistake
from conformance.operations import OPERATIONS
from conformance.operations.probes import catalogue, probes_of_all
from conformance.oracle.reference import oracle
from conformance.reports.causes import describe_declaration
from conformance.reports.sentences import describe_finding
from conformance.reports.subjects import checked_content
from conformance.reports.tables import subject_report
from conformance.runner.in_process import Runner
from conformance.sampling.draws import draw_cases
from conformance.sampling.operations import operation_cases
from conformance.sampling.strategies import Draw
from conformance.subjects.callables import Target
from conformance.subjects.frameworks import TorchArrays
from conformance.subjects.subject import JaxSubject, NumpySubject, Subject, TorchSubject
from specification.engines import Choice
from specification.masks import Causal, Mask, map_arrays

SUBJECTS = {"reference_numpy": NumpySubject, "torch_impl": TorchSubject, "jax_impl": JaxSubject}
PACKAGES = tuple(SUBJECTS)

SMALL = {"batch": 4, "heads": 8, "queries": 16, "keys": 16, "key_width": 16, "value_width": 16}
"""Declared limits, for tests of what does not depend on sizes: without the large ones a check takes half the time."""
FEW_SIZES = ("--limits", ",".join(f"{name}={size}" for name, size in SMALL.items()))
"""On the command line."""


def keep_meaningful(limits: dict[str, int], operation: str) -> dict[str, int]:
    """The limits of sizes that the operation has."""
    return {name: size for name, size in limits.items() if name in operation_facts(operation).dimension_names}


DOCUMENTS = Path(__file__).parents[2] / "docs"


class Implementation:
    """One of the three packages. Its operations are attributes: `implementation.attention(...)`."""

    def __init__(self, package: str) -> None:
        self.package = package

    @cached_property
    def subject(self) -> Subject:
        return SUBJECTS[self.package]()

    def __getattr__(self, operation: str) -> Any:
        return getattr(self.subject.module, operation)

    def convert(self, argument: Any) -> Any:
        """Every NumPy array inside an argument as the framework's own: in masks, parameters, lists and dictionaries."""
        if isinstance(argument, np.ndarray):
            return self.subject.framework.array(argument)
        if isinstance(argument, Mask):
            return map_arrays(argument, self.convert)
        if isinstance(argument, dict):
            return {name: self.convert(value) for name, value in argument.items()}
        if isinstance(argument, tuple) and hasattr(argument, "_fields"):
            return type(argument)(*map(self.convert, argument))
        if isinstance(argument, list | tuple):
            return type(argument)(map(self.convert, argument))
        return argument

    def call(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """An operation on NumPy arrays, with NumPy arrays as its result."""
        result = getattr(self, operation)(*self.convert(arguments), **self.convert(options))
        numpy = self.subject.framework.numpy
        return tuple(map(numpy, result)) if isinstance(result, tuple) else numpy(result)


IMPLEMENTATIONS = tuple(map(Implementation, PACKAGES))
REFERENCE = IMPLEMENTATIONS[0]


def error_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[type, str]:
    """The kind and the message of the error that a call raises."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments, **options)
    return caught.type, str(caught.value)


def command(*words: object, width: int = 200) -> tuple[int, str]:
    """The exit code and all that the command line prints.

    width: of the terminal; by default so that no line is broken.
    """
    console.width = width
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def output_of(*words: object, code: int = 0, width: int = 200) -> str:
    """All that the command line prints, where it ends with this exit code."""
    found, output = command(*words, width=width)
    assert found == code, output
    return output


def documented_examples(title: str) -> list[str]:
    """The Python below a title in docs/adapters.md."""
    part = (DOCUMENTS / "adapters.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", part, re.DOTALL)


# --- cases and subjects -----------------------------------------------------------------------------------------------


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention_case(
    B: int = 1, G: int = 1, S: int = 1, Q: int = 2, K: int = 3, D: int = 2, V: int = 2, *,
    dtype: str = "float32", seed: int = 0, gradients: bool = False, **options: Any,
) -> Case:  # fmt: skip
    """A case with G * S query heads."""
    draw = Draw(seed, dtype)
    inputs = {"query": draw.normal(B, G * S, Q, D), "key": draw.normal(B, G, K, D), "value": draw.normal(B, G, K, V)}
    cotangents = {"output": draw.normal(B, G * S, Q, V)} if gradients else {}
    return Case("attention", dtype, inputs, options, cotangents)


def planted_case(clean: Case, name: str = "", place: Any = ()) -> Planted:
    """NaN at a place of an input; nothing is planted where no input is named."""
    marks = {array: np.zeros(clean.inputs[array].shape, bool) for array in ("query", "key", "value")}
    if not name:
        return Planted(clean, clean, allowed_pairs(clean), marks)
    marks[name][place] = True
    inputs = clean.inputs | {name: np.where(marks[name], np.float32(np.nan), clean.inputs[name])}
    return Planted(clean, replace(clean, inputs=inputs, special=True), allowed_pairs(clean), marks)


OFF = Finding("output", 12.5, (0, 2, 1, 1), 0.75, 0.5, 0.02)


def violation(finding: Finding = OFF, subject: Any = "kernels.py:attention", rule: str = "ATT-1") -> Violation:
    """Of 17 keys, where 16 are right."""
    sizes, case = (Threshold(("K",), "first", (17,), (16,), 16),), attention_case(1, 2, 2, mask=Causal(0))
    target = Target(subject, "attention")
    return Violation(rule, target.title, finding, "a probe", AGREEMENT, case, target=target, threshold=sizes)


def runner_of(function: Any, operation: str = "attention", arrays: str = "numpy", **given: Any) -> Runner:
    return Runner(Target(function, operation, arrays, given=given).make())


def examine(runner: Runner, example: Any, check: str = "agreement") -> list[Finding]:
    """What one check of one example finds. check: by its name in replay files."""
    return runner(CHECKS[check], example, CHECKS[check].prepare(example))


def find_errors(runner: Runner, example: Any, check: str = "agreement") -> list[Finding]:
    """Of what `examine` finds, that which breaks a rule at some level."""
    return [finding for finding in examine(runner, example, check) if finding.ratio > 1]


def find_violation(runner: Runner, example: Any, check: str = "agreement", rule: str = "ATT-1") -> Violation:
    """What one check of one example breaks."""
    findings = examine(runner, example, check)
    assert any(finding.ratio > 1 for finding in findings)
    return make_violation(rule, "a probe", CHECKS[check], runner, example, findings)


# --- checks -----------------------------------------------------------------------------------------------------------


def judged(function: Any, *rules: str, operation: str = "attention", **given: Any) -> Report:
    """A quick check in float32 at small sizes, where nothing else is given; of all rules unless some are named."""
    quick = {"effort": "quick", "seed": 1, "shrink": False, "dtypes": ["float32"]}
    quick |= {"limits": keep_meaningful(SMALL, operation)}
    return check(function, operation, **quick | {"rules": rules or None} | given)


def violated(function: Any, *rules: str, **given: Any) -> list[str]:
    """The rules that `judged` finds violated."""
    return [*dict.fromkeys(violation.rule for violation in judged(function, *rules, **given).violations)]


def run_probes(probes: Sequence[Probe], subjects: Iterable[Subject], examples: int, seed: int) -> Results:
    """What some probes, and every call that their rules refuse, find in all subjects together."""
    rules = {probe.rule for probe in probes}
    questions = list_questions(None, EVERYTHING, EVERYTHING, rules, probes)
    generated = [question for question in questions if question.kind != "frozen"]
    return ask_questions(generated, [Runner(subject) for subject in subjects], examples, seed)


def find_mistake(id: str) -> Mistake:
    """Of the catalogue."""
    (mistake,) = (one for one in known_mistakes() if one.id == id)
    return mistake


def messages(report: Report) -> dict[str, str]:
    """What is said of each rule that is violated."""
    return {violation.rule: describe_finding(violation.finding) for violation in report.violations}


def name_of_cause(cause: Cause) -> str:
    """The id of the known mistake behind it, or the kind of a cause without one."""
    return cause.kind if cause.diagnosis is None else cause.diagnosis.id


def names_of_causes(report: Report) -> list[tuple[str, str]]:
    """The rules that are violated, each with the id of the known mistake behind it, or the kind of its cause."""
    names = {rule: name_of_cause(cause) for cause in report.causes for rule in cause.rules}
    return [(violation.rule, names[violation.rule]) for violation in report.violations]


def options_of(report: Report) -> list[str]:
    """Of each cause the options that declare it, or nothing."""
    subject = checked_content(report, None)
    declared = (describe_declaration(cause, subject) for cause in subject["causes"])
    return ["" if one is None else one[1] for one in declared]


def write_replay(report: Report, folder: Path) -> Path:
    """The replay file of its only violation."""
    (violation,) = checked_content(report, folder)["violations"]
    return Path(violation["replay_file"])


def rendered(show: Callable[[Console], Any], width: int = 200) -> str:
    """What a function prints to a console."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        show(console)
    return captured.get()


def printed(subject: dict[str, Any], width: int = 200) -> str:
    """A report's part about a subject, as the terminal shows it."""
    return rendered(lambda console: console.print(subject_report(subject, 1), crop=False), width)


def by_reference(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attention and norm of a port be by the reference engine, so that two ways to one result round alike."""
    if package != REFERENCE.package:
        monkeypatch.setattr(f"{package}.engines.choice.engine_for", lambda *_: Choice("reference", "", {}))
    if package == "torch_impl":
        monkeypatch.setattr("torch_impl.engines.choice.layer_norm_engine_for", lambda *_: Choice("reference", "", {}))
