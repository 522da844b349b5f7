"""A check whose probes several processes share gives the report of a single process."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import Report, check
from conformance.judge import shared_probes
from tests.support import in_workers
from tests.support.helpers import SMALL, Target, describe_finding, messages, names_of_causes

RULES = ("MASK-3", "ATT-1")


@pytest.fixture
def subject(tmp_path: Path) -> Path:
    (tmp_path / "parent").write_text(str(os.getpid()))
    (tmp_path / "asked").write_text("")
    return Path(shutil.copy(in_workers.__file__, tmp_path))


def checked(subject: Path, name: str, workers: int = 2, **given: Any) -> Report:
    """In this process and in workers, unless `isolate` says where."""
    small: dict[str, Any] = {"effort": "quick", "dtypes": ["float32"], "limits": SMALL}
    given = small | {"rules": RULES, "shrink": False, "isolate": False} | given
    return check(f"{subject}:{name}", "attention", seed=1, workers=workers, **given)


def found(report: Report) -> Any:
    """All but the time."""
    violations = [(v.rule, str(v.finding), v.title, str(v.case)) for v in report.violations]
    return report.rules, violations, names_of_causes(report), report.untried, report.declaration


Ready = Callable[[shared_probes.SharedProbes, int], bool]


def hold_probes(monkeypatch: pytest.MonkeyPatch, ready: Ready) -> None:
    """The checking process waits with each probe until its workers are as far."""
    outcome = shared_probes.SharedProbes.outcome

    def later(self: shared_probes.SharedProbes, index: int, listen: Any) -> Any:
        while not ready(self, index):
            time.sleep(0.01)
        return outcome(self, index, listen)

    monkeypatch.setattr(shared_probes.SharedProbes, "outcome", later)


def has_finished_or_died(shared: shared_probes.SharedProbes, index: int) -> bool:
    """Every probe is left to the worker, as far as one lives."""
    return shared.futures[index].done() or not any(worker.is_alive for worker in shared.pool.workers)


def has_begun_any(shared: shared_probes.SharedProbes, index: int) -> bool:
    return any(future.running() or future.done() for future in shared.futures)


def has_finished_any(shared: shared_probes.SharedProbes, index: int) -> bool:
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


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_what_a_worker_has_no_memory_for_is_left_to_this_process(
    subject: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_probes(monkeypatch, has_finished_or_died)
    report = checked(subject, "needs_more_than_a_worker_may_take", rules=[*RULES, "ATT-13"])
    assert report.conforms, str(report)


def test_an_early_end_tells_what_workers_have_found(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []

    def outcome(self: shared_probes.SharedProbes, index: int, listen: Any) -> Any:
        processes.extend(worker.process for worker in self.pool.workers)
        while not self.futures[index].done():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_probes.SharedProbes, "outcome", outcome)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        checked(subject, "wrong_in_a_worker", unfinished=reports.append)
    assert {violation.rule for violation in reports[0].violations} == set(RULES)
    assert all(process.returncode is not None for process in processes)


def test_a_second_process_needs_a_target_and_memory(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Target(f"{subject}:attention", "attention")
    assert shared_probes.share_probes(Target(lambda query, key, value: value, "attention"), 30.0, 2) is None
    assert shared_probes.share_probes(replace(named, given={"vjp": lambda *given: None}), 30.0, 2) is None
    assert shared_probes.share_probes(named, 30.0, 1) is None
    monkeypatch.setattr(shared_probes, "memory", lambda: 4e9)
    assert shared_probes.share_probes(named, 30.0, 2) is None
