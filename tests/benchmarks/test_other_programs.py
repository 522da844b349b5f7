"""What other programs take of the processors: told from the run's own work, and said."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measure import other_programs, running, steal_time
from benchmarks.measure.other_programs import Taken
from benchmarks.measure.rounds import Budget
from benchmarks.measure.workers import Worker
from tests.benchmarks.test_steal_time import ACCOUNT, CASE, Scripted, run_of, started


def test_all_but_idle_ticks_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert other_programs.used_from(ACCOUNT, (0, 1)) == pytest.approx((116 + 66) / 100)
    assert other_programs.used_from(ACCOUNT, (1, 2)) is None
    assert other_programs.used_from(["cpu0 1 2 3"], (0,)) is None


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(steal_time, "ACCOUNT", tmp_path / "nowhere")
    assert other_programs.watching()() is None


def test_what_others_take_is_what_neither_the_run_nor_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 s that the processors worked the host took 1, and the run 11."""
    accounts = {(0,): iter([(100.0, 7.0), (116.0, 8.0)])}
    monkeypatch.setattr(other_programs, "processors", lambda: [0, 1])
    monkeypatch.setattr(other_programs, "account", lambda of: next(accounts[tuple(of)]))
    monkeypatch.setattr(other_programs, "own_so_far", iter((30.0, 41.0)).__next__)
    monkeypatch.setattr(other_programs.time, "perf_counter", iter((10.0, 30.0)).__next__)
    found = other_programs.watching(1)()
    assert found == Taken(4.0, 1.0, 20.0)
    assert found.share == 0.25
    assert Taken(-2.0, 1.0, 20.0).share == 0
    assert Taken(-20.0, 0.0, 20.0).share is None  # numbers that stay the same show no quiet machine


class Computing:
    def compute(self, seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass


def test_processes_of_the_run_are_its_own() -> None:
    if other_programs.account((0,)) is None:
        pytest.skip("the system does not tell")
    worker = Worker(Computing, (), 1, {})
    try:
        worker.ask("compute", 0.01, limit=60)
        before, own = other_programs.own_so_far(), time.process_time()
        worker.ask("compute", 0.5, limit=60)
        assert other_programs.own_so_far() - before - (time.process_time() - own) > 0.4
    finally:
        worker.end()
    assert other_programs.computed(None) == 0


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ([], None),
        ([None], None),
        ([(-0.3, 0.0, 2.0)], None),
        ([(-0.1, 0.0, 1.0), (0.1, 0.9, 1.0)], ""),
        ([(0.0, 0.0, 1.0), (0.5, 0.0, 1.0)], "they took 25% of its processors"),
        ([(9.0, 0.0, 1.0), None], "they took 100% of its processors"),
    ],
)
def test_what_others_took_in_words(taken: list[tuple[float, float, float] | None], words: str | None) -> None:
    assert other_programs.in_words(None if one is None else Taken(*one) for one in taken) == words


@pytest.mark.parametrize(("others", "told"), [(0.0, ""), (1.0, "they took 50% of its processors"), (None, "load 9")])
def test_a_case_says_what_others_took_during_its_trials(
    monkeypatch: pytest.MonkeyPatch, others: float | None, told: str
) -> None:
    """Where no system tells it, the load says it."""
    one = None if others is None else Taken(others, 0.0, 2.0)
    monkeypatch.setattr(running, "watching", lambda threads: lambda: one)
    run, entry = run_of(Scripted([0.0] * 9), Budget(3, 3)), started()
    run.plan = replace(run.plan, busy=lambda: "load 9")
    run.time([entry], CASE)
    assert (run.busy, len(run.taken)) == (told, 3)
