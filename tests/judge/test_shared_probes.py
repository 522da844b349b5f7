"""A check whose probes several processes share gives the report of a single process."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import check
from conformance.judge import shared_probes
from conformance.judge.report import Report
from conformance.judge.shared_probes import SharedProbes, share_probes
from conformance.reports.sentences import describe_finding
from conformance.subjects.callables import Target
from tests.support.helpers import SMALL, messages, names_of_causes

SUBJECT = """
import ctypes, os, signal, time
from pathlib import Path
import reference_numpy

HERE = Path(__file__).parent
PARENT = int((HERE / "parent").read_text())
WORKER = os.getpid() != PARENT


def attention(query, key, value, *, mask=None, scale=None):
    with (HERE / "asked").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return reference_numpy.attention(query, key, value, mask=mask, scale=scale)


def mean_of_empty_rows(query, key, value, *, mask=None, scale=None):
    mask = None if mask is None else mask | ~mask.any(-1, keepdims=True)
    return attention(query, key, value, mask=mask, scale=scale)


def wrong(query, key, value, *, mask=None, scale=None):
    return attention(query, key, value, mask=mask, scale=None if scale is None else scale * 1.5)


def dies(query, key, value, *, mask=None, scale=None):
    if WORKER:
        os._exit(3)
    return attention(query, key, value, mask=mask, scale=scale)


def wrong_in_a_worker(query, key, value, *, mask=None, scale=None):
    return attention(query, key, value, mask=mask, scale=scale) * (1 + WORKER)


def slow_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        time.sleep(60)
    return attention(query, key, value, mask=mask, scale=scale)


def hangs_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        ctypes.PyDLL(None).sleep(600)  # nothing else runs meanwhile in this process
    return attention(query, key, value, mask=mask, scale=scale)


def dies_on_masks(query, key, value, *, mask=None, scale=None):
    if mask is not None:
        os.abort()
    return attention(query, key, value, scale=scale)


def prints_in_a_worker(query, key, value, *, mask=None, scale=None):
    if WORKER:
        print("a worker")
    return attention(query, key, value, mask=mask, scale=scale)

"""
RULES = ("MASK-3", "ATT-1")


@pytest.fixture
def subject(tmp_path: Path) -> Path:
    (tmp_path / "parent").write_text(str(os.getpid()))
    (tmp_path / "subject.py").write_text(SUBJECT)
    (tmp_path / "asked").write_text("")
    return tmp_path / "subject.py"


def checked(subject: Path, name: str, workers: int = 2, **given: Any) -> Report:
    """In this process and in workers, unless `isolate` says where."""
    small: dict[str, Any] = {"effort": "quick", "dtypes": ["float32"], "limits": SMALL}
    given = small | {"rules": RULES, "shrink": False, "isolate": False} | given
    return check(f"{subject}:{name}", "attention", seed=1, workers=workers, **given)


def found(report: Report) -> Any:
    """All but the time."""
    violations = [(v.rule, str(v.finding), v.title, str(v.case)) for v in report.violations]
    return report.rules, violations, names_of_causes(report), report.untried, report.declaration


Ready = Callable[[SharedProbes, int], bool]


def hold_probes(monkeypatch: pytest.MonkeyPatch, ready: Ready) -> None:
    """The checking process waits with each probe until its workers are as far."""
    outcome = SharedProbes.outcome

    def later(self: SharedProbes, index: int, listen: Any) -> Any:
        while not ready(self, index):
            time.sleep(0.01)
        return outcome(self, index, listen)

    monkeypatch.setattr(SharedProbes, "outcome", later)


def has_finished_or_died(shared: SharedProbes, index: int) -> bool:
    """Every probe is left to the worker, as far as one lives."""
    return shared.futures[index].done() or not any(worker.is_alive for worker in shared.pool.workers)


def has_begun_any(shared: SharedProbes, index: int) -> bool:
    return any(future.running() or future.done() for future in shared.futures)


def has_finished_any(shared: SharedProbes, index: int) -> bool:
    return any(future.done() for future in shared.futures)


def test_the_report_is_that_of_one_process(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = checked(subject, "wrong", 1)
    assert [violation.rule for violation in alone.violations] == ["ATT-1"]
    hold_probes(monkeypatch, has_finished_or_died)
    (subject.parent / "asked").write_text("")
    assert found(checked(subject, "wrong")) == found(alone)
    assert len(set((subject.parent / "asked").read_text().split())) >= 2


def test_both_processes_have_a_share(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what rows that allow nothing say of the declaration holds in the worker's probes too."""
    rules = ["ATT-6", "MASK-3"]
    told: dict[int, list[str]] = {1: [], 2: []}
    alone = checked(subject, "mean_of_empty_rows", 1, rules=rules, progress=lambda rule, title: told[1].append(title))
    assert [violation.rule for violation in alone.violations] == ["ATT-6"]
    hold_probes(monkeypatch, has_finished_any)
    (subject.parent / "asked").write_text("")
    shared = checked(subject, "mean_of_empty_rows", rules=rules, progress=lambda rule, title: told[2].append(title))
    assert found(shared) == found(alone)
    assert len(set((subject.parent / "asked").read_text().split())) >= 2
    assert Counter(told[1]) <= Counter(told[2])


def test_a_worker_that_dies_leaves_its_probes_to_this_process(subject: Path) -> None:
    assert found(checked(subject, "dies")) == found(checked(subject, "attention", 1))


@pytest.mark.slow
def test_a_worker_that_hangs_leaves_its_probes_to_this_process(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In native code, it ends itself some seconds after the time limit."""
    hold_probes(monkeypatch, has_begun_any)
    assert found(checked(subject, "hangs_in_a_worker", time_limit=0.5)) == found(checked(subject, "attention", 1))


@pytest.mark.slow
def test_a_crash_in_workers_is_a_violation_as_in_one_isolated_process(subject: Path) -> None:
    alone = checked(subject, "dies_on_masks", 1, isolate=True, supports=["causal"])
    assert [*messages(alone).values()] == ["call: its process died of SIGABRT"]
    assert found(checked(subject, "dies_on_masks", isolate=None, supports=["causal"])) == found(alone)


def test_what_only_a_worker_sees_counts(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_probes(monkeypatch, has_finished_or_died)
    assert {violation.rule for violation in checked(subject, "wrong_in_a_worker", shrink=True).violations} == set(RULES)
    report = checked(subject, "prints_in_a_worker")
    assert "prints to standard output: 'a worker" in describe_finding(report.violations[0].finding)


@pytest.mark.slow
def test_what_takes_too_long_in_a_worker_counts(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_probes(monkeypatch, has_finished_any)
    report = checked(subject, "slow_in_a_worker", time_limit=1.0, rules=["MASK-3"])
    assert "took longer than 1 s" in describe_finding(report.violations[0].finding)


def test_an_early_end_tells_what_workers_have_found(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []

    def outcome(self: SharedProbes, index: int, listen: Any) -> Any:
        processes.extend(worker.process for worker in self.pool.workers)
        while not self.futures[index].done():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(SharedProbes, "outcome", outcome)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        checked(subject, "wrong_in_a_worker", unfinished=reports.append)
    assert {violation.rule for violation in reports[0].violations} == set(RULES)
    assert all(process.returncode is not None for process in processes)


def test_a_second_process_needs_a_target_and_memory(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Target(f"{subject}:attention", "attention")
    assert share_probes(Target(lambda query, key, value: value, "attention"), 30.0, 2) is None
    assert share_probes(replace(named, given={"vjp": lambda *given: None}), 30.0, 2) is None
    assert share_probes(named, 30.0, 1) is None
    monkeypatch.setattr(shared_probes, "memory", lambda: 4e9)
    assert share_probes(named, 30.0, 2) is None
