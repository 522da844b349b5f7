"""A check whose probes several processes share gives the report of a single process."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import check
from conformance.cases.declaration import declaration_of
from conformance.judge import worker_processes
from conformance.judge.judgement import Judgement
from conformance.judge.report import Report
from conformance.judge.run import silent
from conformance.judge.worker_processes import Order, Start, WorkerProcesses, claim_probe, start_workers
from conformance.reports.sentences import describe_finding
from conformance.runner.in_process import Runner
from conformance.subjects.targets import Target
from reference_numpy import silu as reference_silu
from tests.support.helpers import SMALL, names_of_causes

SUBJECT = """
import ctypes, os, signal, time
import numpy as np
from pathlib import Path

HERE = Path(__file__).parent
PARENT = int((HERE / "parent").read_text())
WORKER = os.getpid() != PARENT


@np.errstate(all="ignore")
def attention(query, key, value, *, mask=None, scale=None):
    with (HERE / "asked").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    wide = np.float64 if query.dtype == np.float64 else np.float32
    query, key, value = (array.astype(wide) for array in (query, key, value))
    key, value = (np.repeat(array, query.shape[1] // max(array.shape[1], 1), axis=1) for array in (key, value))
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = np.where(True if mask is None else mask, scores, -np.inf)
    largest = scores.max(-1, keepdims=True, initial=-1e30)
    exponentials = np.exp(scores - largest)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total) @ value


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


def worker_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checking process leaves every probe to the worker, as far as one lives."""

    def outcome(self: WorkerProcesses, index: int, waiting: Any) -> Any:
        alive = [process for process in self.processes.values() if process.poll() is None]
        while alive and alive[0].poll() is None and not self.has_finished(index):
            time.sleep(0.01)
        return self.read_outcome(index)

    monkeypatch.setattr(WorkerProcesses, "outcome", outcome)


def both_take_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checking process waits with its first probe until the worker has finished its own."""
    outcome = WorkerProcesses.outcome

    def later(self: WorkerProcesses, index: int, waiting: Any) -> Any:
        while not list(self.path.glob(f"{self.orders}/*.result")):
            time.sleep(0.01)
        return outcome(self, index, waiting)

    monkeypatch.setattr(WorkerProcesses, "outcome", later)


def test_the_report_is_that_of_one_process(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = checked(subject, "wrong", 1)
    assert [violation.rule for violation in alone.violations] == ["ATT-1"]
    worker_takes_everything(monkeypatch)
    (subject.parent / "asked").write_text("")
    assert found(checked(subject, "wrong")) == found(alone)
    assert len(set((subject.parent / "asked").read_text().split())) >= 2


def test_both_processes_have_a_share(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what rows that allow nothing say of the declaration holds in the worker's probes too."""
    subject.write_text(SUBJECT.replace("np.where(total == 0, 1, total)", "total").replace("-np.inf)", "-1e30)"))
    rules = ["ATT-6", "MASK-3"]
    told: dict[int, list[str]] = {1: [], 2: []}
    alone = checked(subject, "attention", 1, rules=rules, progress=lambda rule, title: told[1].append(title))
    assert [violation.rule for violation in alone.violations] == ["ATT-6"]
    both_take_a_share(monkeypatch)
    (subject.parent / "asked").write_text("")
    shared = checked(subject, "attention", rules=rules, progress=lambda rule, title: told[2].append(title))
    assert found(shared) == found(alone)
    assert len(set((subject.parent / "asked").read_text().split())) >= 2
    assert Counter(told[1]) <= Counter(told[2])


def test_a_worker_that_dies_leaves_its_probes_to_this_process(subject: Path) -> None:
    assert found(checked(subject, "dies")) == found(checked(subject, "attention", 1))


@pytest.mark.slow
def test_a_worker_that_hangs_in_native_code_leaves_its_probes_to_this_process(
    subject: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends itself, some seconds after the time limit."""
    outcome = WorkerProcesses.outcome

    def after_a_claim(self: WorkerProcesses, index: int, waiting: Any) -> Any:
        while not list(self.path.glob(f"{self.orders}/*.claim")):
            time.sleep(0.01)
        return outcome(self, index, waiting)

    monkeypatch.setattr(WorkerProcesses, "outcome", after_a_claim)
    assert found(checked(subject, "hangs_in_a_worker", time_limit=0.5)) == found(checked(subject, "attention", 1))


@pytest.mark.slow
def test_a_crash_in_workers_is_a_violation_as_in_one_isolated_process(subject: Path) -> None:
    alone = checked(subject, "dies_on_masks", 1, isolate=True, supports=["causal"])
    assert [describe_finding(violation.finding) for violation in alone.violations] == [
        "call: its process died of SIGABRT"
    ]
    assert found(checked(subject, "dies_on_masks", isolate=None, supports=["causal"])) == found(alone)


def test_what_only_a_worker_sees_counts(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_takes_everything(monkeypatch)
    assert {violation.rule for violation in checked(subject, "wrong_in_a_worker", shrink=True).violations} == set(RULES)
    report = checked(subject, "prints_in_a_worker")
    assert "prints to standard output: 'a worker" in describe_finding(report.violations[0].finding)


@pytest.mark.slow
def test_what_takes_too_long_in_a_worker_counts(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_take_a_share(monkeypatch)
    report = checked(subject, "slow_in_a_worker", time_limit=1.0, rules=["MASK-3"])
    assert "took longer than 1 s" in describe_finding(report.violations[0].finding)


def test_an_early_end_tells_what_workers_have_found(subject: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []

    def outcome(self: WorkerProcesses, index: int, waiting: Any) -> Any:
        processes.extend(self.processes.values())
        while not self.has_finished(index):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcesses, "outcome", outcome)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        checked(subject, "wrong_in_a_worker", unfinished=reports.append)
    assert {violation.rule for violation in reports[0].violations} == set(RULES)
    assert all(process.returncode is not None for process in processes)


def test_there_is_one_process_where_a_second_has_no_target_or_no_memory(
    subject: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = Target(f"{subject}:attention", "attention")
    assert start_workers(Target(lambda query, key, value: value, "attention"), 30.0, 2) is None
    assert (
        start_workers(Target(f"{subject}:attention", "attention", given={"vjp": lambda *given: None}), 30.0, 2) is None
    )
    assert start_workers(named, 30.0, 1) is None
    monkeypatch.setattr(worker_processes, "memory", lambda: 4e9)
    assert start_workers(named, 30.0, 2) is None


def test_a_probe_has_one_owner(tmp_path: Path) -> None:
    assert claim_probe(tmp_path, 3) is None
    assert claim_probe(tmp_path, 3) == os.getpid()
    assert claim_probe(tmp_path, 4) is None


def test_an_order_that_cannot_be_sent_leaves_all_to_this_process(subject: Path) -> None:
    workers = WorkerProcesses(Start(Target(f"{subject}:attention", "attention"), 30.0, 2))
    try:
        unsendable = declaration_of(lambda query, key, value: value, False, vjp=lambda *given: None)
        workers.order(Order("attention", unsendable, 1, 1, None))
        assert workers.outcome(0, lambda: None) is None
    finally:
        workers.close()


class Idle:
    """Workers that run nothing, and keep what is ordered."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def order(self, order: Order) -> None:
        self.orders.append(order)

    def outcome(self, index: int, waiting: Any) -> None:
        """None of the probes."""

    def news(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("refused", [(), ("float16",)])
def test_workers_begin_before_it_is_known_what_the_function_takes(refused: tuple[str, ...]) -> None:
    """They go on with that unless the function takes less than it claims."""

    def silu(x: np.ndarray) -> np.ndarray:
        if str(x.dtype) in refused:
            raise TypeError("another dtype")
        found: np.ndarray = reference_silu(x)
        return found

    workers: Any = Idle()
    runner = Runner(Target(silu, "silu").make())
    Judgement(runner, "silu", 1, 1, ["ATT-13"], silent, 0.0, workers=workers).run()
    taken = [set(refused) <= {*order.declaration.dtypes} for order in workers.orders]
    assert taken == ([True, False] if refused else [True])
