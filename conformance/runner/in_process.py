"""How a subject is run: in this process, under a time limit, with everything that goes wrong turned into findings.

What goes wrong in the judge is no finding: it is raised. `in_subprocess.py` does the same in a subprocess, which may
hang or crash. Here nothing stops a subject that catches every exception, hangs in native code or ends the process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.features import dimensions
from conformance.checks.catalogue import Check, Example, Shared
from conformance.checks.comparison import error_finding
from conformance.checks.findings import Detail, Finding, NoAnswer, Size, TookTooLong
from conformance.checks.results import find_answers
from conformance.runner.compiled_code import forget_compiled_code
from conformance.runner.memory_limit import name_limit
from conformance.runner.own_time import TooSlow, limit_time, measure_crowding, valid_limit
from conformance.subjects.callables import Target
from conformance.subjects.subject import Answers, Subject, first_line
from conformance.subjects.wrong_answers import WrongAnswer

TIME_LIMIT = 30.0
"""Seconds of own time (see `own_time.py`) for one check (one case, a few calls), compilation included."""

CHECKS_PER_CLEANING = 10
"""After so many checks a look whether too much code was compiled; each may compile for a shape of its own."""
SHOWN = 1000
"""Bytes that are kept of what a subject prints."""

LOGGED = 20
"""So many of the latest checks are remembered, for what depends on earlier calls."""

Step = tuple[Check[Any, Any], Any, Any]
"""(check, its example, what it has prepared)."""
Logged = tuple[Check[Any, Any], Any]
"""(check, its example)."""


class JudgeError(BaseException):
    """Something went wrong by no fault of the subject's.

    No `Exception`: Hypothesis would take that for a failing case, and ask for it again.
    """


@contextlib.contextmanager
def judge_scope() -> Iterator[None]:
    """Around all that the judge does: NumPy's own settings hold, and what goes wrong in it is a RuntimeError."""
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        try:
            yield
        except JudgeError as error:
            raise RuntimeError(str(error)) from error


def failed_call(detail: Detail) -> list[Finding]:
    return [Finding("call", float("inf"), detail=detail)]


def new_log() -> deque[Logged]:
    return deque(maxlen=LOGGED + 1)


def ignore_warnings_of_numbers() -> None:
    """In a process of the judge's own: it gives NaN and huge numbers on purpose, and NumPy warns of them."""
    warnings.filterwarnings("ignore", "(invalid value|overflow|divide by zero) encountered in", RuntimeWarning)


class Runner:
    """Runs checks on a subject here. `printed`: what it wrote to standard output. `overrun`: checks that took too long.
    `asked`: checks. `log`: the latest of them. `sizes`: those that it takes.
    `answers`: those to the latest case, where a diagnosis may want them.
    `never_given`: parameters of a function that are none of the operation's. `target`: what it was made from.

    time_limit: None for no limit and no capture of what is printed. ValueError for one that cannot be kept.
    """

    target: Target | None = None
    interrupts_are_users = True
    """Whether a KeyboardInterrupt may be that of whoever runs the judge: not in a process that gets no signals."""

    def __init__(self, subject: Subject, time_limit: float | None = None) -> None:
        self.subject, self.time_limit = subject, valid_limit(time_limit)
        self.name, self.declaration = subject.name, subject.declaration
        self.never_given: tuple[str, ...] = getattr(getattr(subject, "signature", None), "never_given", ())
        self.printed, self.overrun, self.asked = "", 0, 0
        self.answers: Answers | None = None
        self.output: Output | None = None
        self.log, self.sizes = new_log(), SizeLimits()

    def __call__(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        """The findings; an exception that the subject raises is a finding like any other."""
        self.log.append((check, example))
        findings = check.raise_levels(self.run_check(check, example, shared), example)
        return self.sizes.learn_limits(check.case_of(example), findings) if check.tells_size else findings

    def hear_rule(self, rule: str) -> None:
        """Hear which rule a failing case speaks of."""

    def run_check(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        self.asked += 1
        self.answers = None
        if self.asked % CHECKS_PER_CLEANING == 0:
            forget_compiled_code()
        try:
            with self.capture_output(), limit_time(self.time_limit):
                findings = name_limit(check.run(self.subject, example, shared))
            self.overrun += any(isinstance(one.detail, TookTooLong) for one in findings)
            self.answers = find_answers(self.subject, check, example)
            return findings
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.interrupts_are_users:
                raise
            return self.error_findings(error)
        finally:
            self.subject.scope.raised = None  # with all that its traceback holds
            self.subject.latest = None

    def error_findings(self, error: BaseException) -> list[Finding]:
        """What an exception says of the subject; JudgeError where it is not the subject's."""
        if isinstance(error, TooSlow):
            self.overrun += 1
            return failed_call(TookTooLong(self.time_limit or 0.0, crowding=measure_crowding()))
        if isinstance(error, WrongAnswer) or error is self.subject.scope.raised:
            return name_limit([error_finding(error, self.subject)])
        if isinstance(error, Exception):
            raise JudgeError(f"the judge failed: {type(error).__name__}: {first_line(error)}") from error
        raise error

    @contextlib.contextmanager
    def capture_output(self) -> Iterator[None]:
        """Send Python's standard output to a file, because some ask it for its descriptor or write bytes to it."""
        if self.time_limit is None:
            yield
            return
        if self.output is None:
            self.output = Output()
            weakref.finalize(self, self.output.close)
        try:
            with contextlib.redirect_stdout(self.output.stream):
                yield
        finally:
            self.printed = self.printed or self.output.take_text()

    def close(self) -> None:
        if self.output is not None:
            self.output.close()
            self.output = None


class Output:
    """What a subject prints: a temporary file, a stream to write to it, and a descriptor of the judge's to read it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.stream = open(os.dup(self.file.fileno()), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115

    def take_text(self) -> str:
        """Return the beginning of what was written, and empty the file."""
        with contextlib.suppress(ValueError, OSError):  # closed by the subject; on a full disk
            self.stream.flush()
        self.file.seek(0)
        text = self.file.read(SHOWN)
        if text:
            self.file.seek(0)
            self.file.truncate()
        return text.decode(errors="backslashreplace")

    def close(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            self.stream.close()
        self.file.close()


# --- sizes that a subject cannot take ---------------------------------------------------------------------------------


LARGE = 128
"""Sizes up to this one are ordinary: a call that fails there fails for another reason."""


class SizeLimits:
    """answered: the largest size in each dimension of all calls that were answered. limits: what none may exceed."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self.reported: set[str] = set()

    def is_too_large(self, case: Case) -> bool:
        """Whether calls of this size are known to fail."""
        return bool(self.limits) and any(size > self.limits.get(name, size) for name, size in dimensions(case).items())

    def learn_limits(self, case: Case, findings: list[Finding]) -> list[Finding]:
        """The findings; a failure names the size, where none as large was answered before."""
        sizes = dimensions(case)
        if not findings:  # it was refused, as it may be, or nothing was asked
            return findings
        if not any(finding.name == "call" and isinstance(finding.detail, NoAnswer) for finding in findings):
            self.answered = {name: max(size, self.answered.get(name, 0)) for name, size in sizes.items()}
            return findings
        growth = {n: size / max(self.answered.get(n, 1), 1) for n, size in sizes.items() if size > LARGE}
        name = max(growth, key=lambda name: growth[name], default="")
        if growth.get(name, 0) <= 1:
            return findings
        self.limits[name] = min(sizes[name] - 1, self.limits.get(name, sizes[name]))
        size = Size(name, sizes[name], self.answered.get(name, 0))
        return [
            replace(finding, detail=replace(finding.detail, size=size))
            if finding.name == "call" and isinstance(finding.detail, NoAnswer) and finding.detail.size is None
            else finding
            for finding in findings
        ]

    def is_reported(self, finding: Finding) -> bool:
        """Whether a failure for the size of the same dimension has been reported."""
        return dimension(finding) in self.reported

    def report_again(self, finding: Finding) -> bool:
        """Whether a failure for the size of the same dimension has been reported; from now on it has."""
        name = dimension(finding)
        known = name in self.reported
        self.reported |= {name} if name else set()
        return known


def dimension(finding: Finding) -> str:
    """The one of whose size the failure speaks; empty where it speaks of none."""
    detail = finding.detail
    return detail.size.dimension if isinstance(detail, NoAnswer) and detail.size is not None else ""
