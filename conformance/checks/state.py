"""Checks of state: what a call answers must not depend on calls before it, between its parts, or beside it (ATT-13)."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.checks.comparison import error_finding, judge, worst
from conformance.checks.findings import Finding, NotDeterministic, Phase, WrongInPhase
from conformance.checks.independence import level_of_difference
from conformance.oracle.reference import oracle
from conformance.subjects.frameworks import NoGradients
from conformance.subjects.subject import Answers, Subject, SubjectScope, differentiable
from conformance.subjects.wrong_answers import WrongAnswer

Cases = tuple[Case, ...]
Findings = list[Finding]
Shared = list[tuple[Any, Any]]

CALLS, SECONDS, LONGEST = 220, 0.5, 2.0
"""Equal calls of one case at most, and how long they may take: processor time of this thread, and time altogether."""
ROUNDS, TOGETHER = 40, 0.3
"""Calls of each thread at most, and the seconds after which no thread begins another."""
SWITCHING = 1e-5
"""Seconds after which Python lets another thread go on, while several call the subject."""


def prepare_all(cases: Cases) -> Shared:
    return [(oracle(case), bound(case)) for case in cases]


def worst_finding(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Finding:
    """The worst of one call; what the subject raises is a finding."""
    try:
        return worst(judge(case, subject(case), *shared))
    except Exception as error:
        return error_finding(error, subject)


# --- one call after another -------------------------------------------------------------------------------------------


def check_history(subject: Subject, cases: Cases, shared: Shared) -> Findings:
    """Every answer is judged by its own exact values. Whether state is to blame, a fresh process tells."""
    findings = []
    for number, (case, own) in enumerate(zip(cases, shared, strict=True), 1):
        findings += mark_phase([worst_finding(subject, case, own)], Phase("in_a_row", number, len(cases)))
    return findings


# --- many equal calls -------------------------------------------------------------------------------------------------


def check_repetitions(subject: Subject, case: Case, shared: None) -> Findings:
    """The same bits in every one of many equal calls."""
    end, last, answers, calls = time.thread_time() + SECONDS, time.monotonic() + LONGEST, subject(case), 1
    first = bits(answers)
    while calls < CALLS and time.thread_time() < end and time.monotonic() < last:
        others = subject(case)
        again = bits(others)
        calls += 1
        for name, data in first.items():
            if again[name] != data:
                level = level_of_difference(case, answers, others)
                return [Finding(name, np.inf, detail=NotDeterministic(calls), level=level)]
    return [Finding(f"{name} of {calls} equal calls", 0.0) for name in first]


def bits(answers: Answers) -> dict[str, bytes]:
    """The bytes of every array, with one NaN for all: the sign and payload of a NaN may differ by chance."""

    def unify_nan(array: np.ndarray) -> np.ndarray:
        nan = np.isnan(array)
        return np.where(nan, array.dtype.type(np.nan), array) if nan.any() else array

    return {name: unify_nan(array).tobytes() for name, array in answers.items()}


# --- calls whose forward and backward passes alternate ----------------------------------------------------------------


def check_interleaved(subject: Subject, cases: Cases, shared: Shared) -> Findings:
    """Forward passes of all cases, then their backward passes; then two backward passes of one forward pass.

    A case that is wrong by itself is not asked for here.
    """
    pairs = [(case, own) for case, own in zip(cases, shared, strict=True) if differentiable(case)]
    framework: Any = subject.framework
    if subject.differentiates_by_hand or not hasattr(framework, "pullback"):
        return []
    pairs = [(case, own) for case, own in pairs if worst_finding(subject, case, own).ratio <= 1]
    findings: Findings = []
    with framework.context(), contextlib.suppress(NoGradients):
        started = [Forward(subject, case) for case, _ in pairs]
        for forward, (case, own) in zip(started, pairs, strict=True):
            findings += mark_phase(judge(case, forward.answers(), *own), Phase("after_forward_passes"))
        for case, own in pairs:
            again = second_backward(Forward(subject, case))
            if again is not None:
                findings += mark_phase(judge(case, again, *own), Phase("second_backward_pass"))
    return findings or [Finding("call", 0.0)]


class Forward:
    """A forward pass whose backward pass can be asked for later."""

    def __init__(self, subject: Subject, case: Case) -> None:
        self.subject, self.case = subject, subject.translate_case(case)
        framework: Any = subject.framework
        inputs, options = subject.arrays(self.case)
        with subject.scope:
            self.results, self.pull = framework.pullback(
                lambda arrays: subject.results(self.case, arrays, options),
                inputs,
                differentiable(self.case),
            )

    def answers(self, again: bool = False) -> Answers:
        subject, case = self.subject, self.case
        cotangents = subject.cotangents(case)
        with subject.scope:
            gradients = self.pull(cotangents, again)
            values = self.results | {gradient_name(name): gradient for name, gradient in gradients.items()}
            answers = {name: subject.answer(name, case, values) for name in values}
        return subject.translate_answers(case, answers)


def second_backward(forward: Forward) -> Answers | None:
    """None where the subject refuses it, as compiled functions do."""
    try:
        forward.answers(again=True)
        return forward.answers()
    except Exception as error:
        if error is not forward.subject.scope.raised:
            raise
        return None


def mark_phase(findings: Findings, phase: Phase) -> Findings:
    return [replace(f, detail=WrongInPhase(phase, f)) if f.ratio > 1 else f for f in findings]


# --- several threads --------------------------------------------------------------------------------------------------


class Caller(threading.Thread):
    """One thread's calls of one case."""

    def __init__(self, subject: Subject, case: Case, start: threading.Barrier, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self.subject, self.case = copy.copy(subject), case
        self.subject.scope = SubjectScope()  # whose folder and limit of recursion are all threads' already
        self.subject.scope.settings = subject.scope.settings
        self.starting, self.end = start, end
        self.answers: dict[bytes, Answers] = {}
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            self.starting.wait()
            last = time.monotonic() + TOGETHER
            for _ in range(ROUNDS):
                if self.end.is_set() or time.monotonic() > last:
                    return
                answers = self.subject(self.case)
                self.answers.setdefault(b"".join(bits(answers).values()), answers)
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            self.raised = error


def check_threads(subject: Subject, cases: Cases, shared: Shared) -> Findings:
    """Right answers where several threads call at the same time. A case that is wrong by itself is not asked for."""
    pairs = [
        (case, own) for case, own in zip(cases, shared, strict=True) if worst_finding(subject, case, own).ratio <= 1
    ]
    if len(pairs) < 2:
        return [Finding("call", 0.0)]
    start, end = threading.Barrier(len(pairs)), threading.Event()
    callers = [Caller(subject, case, start, end) for case, _ in pairs]
    with subject.scope, switch_threads_often():
        try:
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
        finally:  # the time limit may have passed in here
            end.set()
            start.abort()
    phase = Phase("threads", count=len(pairs))
    findings: Findings = []
    for caller, (case, own) in zip(callers, pairs, strict=True):
        if caller.raised is not None:
            findings.append(thread_error_finding(caller.raised, caller.subject, phase))
        for answers in caller.answers.values():
            findings += mark_phase(judge(case, answers, *own), phase)
    return findings


def thread_error_finding(error: BaseException, subject: Subject, phase: Phase) -> Finding:
    """What a thread's call raised; an error of the judge's own is raised here."""
    if isinstance(error, WrongAnswer):
        return Finding(error.name, np.inf, detail=WrongInPhase(phase, error.detail))
    return error_finding(error, subject, phase.count)


@contextlib.contextmanager
def switch_threads_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCHING)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
