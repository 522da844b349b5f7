"""What other programs and the host take of the processors: told from the run's own work, repeated for, and said."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.timing.measure import other_programs, running, timing_worker
from conformance.timing.measure.other_programs import Taken
from conformance.timing.measure.processes import Failed, Worker
from conformance.timing.measure.rounds import Budget
from conformance.timing.measure.running import Entry, Plan, Run
from conformance.timing.measure.timing_worker import Start, TimingWorker, Trial
from conformance.timing.results.case_table import line_of_the_host
from conformance.timing.subjects.registry import subjects
from conformance.timing.timed_case import Case
from conformance.timing.verify.row_sampling import Place

CASE = Case("causal", kind="causal", B=1, H=2, G=2, Q=32, K=32, D=8, V=8)
ACCOUNT = """\
cpu  100 0 50 900 5 0 3 70 0 0
cpu0 50 0 25 450 2 0 1 40 0 0
cpu1 30 0 15 250 2 0 1 20 0 0
cpu10 20 0 10 200 1 0 1 10 0 0
intr 4711 8 9 10 11 12 13 14 15
"""


@pytest.mark.parametrize(
    ("of", "ticks"),
    [
        ((0, 1), (116 + 66, 60)),
        ((1,), (66, 20)),
        ((10,), (41, 10)),
        ((1, 2), None),  # a container is not told of all of them
        ((3,), None),
    ],
)
def test_the_account_is_read_for_these_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of: tuple[int, ...], ticks: tuple[int, int] | None
) -> None:
    """All but idle ticks are used; those that the host took are among them."""
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    monkeypatch.setattr(other_programs, "ACCOUNT", tmp_path / "stat")
    (tmp_path / "stat").write_text(f"{ACCOUNT}cpu3 1 2 3\n")
    assert other_programs.account(of) == (ticks and pytest.approx((ticks[0] / 100, ticks[1] / 100)))


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(other_programs, "ACCOUNT", tmp_path / "nowhere")
    assert other_programs.watch_processors()() is None


def test_what_others_take_is_what_neither_the_run_nor_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 s that the processors worked the host took 1, and the run 11."""
    accounts = {(0,): iter([(100.0, 7.0), (116.0, 8.0)])}
    monkeypatch.setattr(other_programs, "processors", lambda: [0, 1])
    monkeypatch.setattr(other_programs, "account", lambda of: next(accounts[tuple(of)]))
    monkeypatch.setattr(other_programs, "own_so_far", iter((30.0, 41.0)).__next__)
    monkeypatch.setattr(other_programs.time, "perf_counter", iter((10.0, 30.0)).__next__)
    found = other_programs.watch_processors(1)()
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


# --- trials -----------------------------------------------------------------------------------------------------------


class Scripted:
    """A process whose trials are known beforehand."""

    def __init__(self, shares: Sequence[float | Failed | None]) -> None:
        self.shares, self.words = shares, list[Any]()

    def ask(self, method: str, case: Case, seed: int, words: Any, *given: Any, limit: float) -> Trial:
        self.words.append(words)
        share = self.shares[len(self.words) - 1]
        if isinstance(share, Failed):
            raise share
        return Trial(float(len(self.words)), words, Place(0, 0, (0,), 1), {}, share)

    def end(self) -> None: ...


def started() -> Entry:
    return Entry(subjects()["reference_numpy"], start=Start("", "", (), "wall clock", 1.0, 1.0))


def run_of(process: Scripted, budget: Budget) -> Run:
    return Run(Plan("cpu", 2, 1, budget), [], lambda make, given, variables: process)


@pytest.mark.parametrize(("others", "told"), [(0.0, ""), (1.0, "they took 50% of its processors"), (None, "load 9")])
def test_a_case_says_what_others_took_during_its_trials(
    monkeypatch: pytest.MonkeyPatch, others: float | None, told: str
) -> None:
    """Where no system tells it, the load says it."""
    one = None if others is None else Taken(others, 0.0, 2.0)
    monkeypatch.setattr(running, "watch_processors", lambda threads: lambda: one)
    run, entry = run_of(Scripted([0.0] * 9), Budget(3, 3)), started()
    run.plan = replace(run.plan, busy=lambda: "load 9")
    run.time([entry], CASE)
    assert (run.busy, len(run.taken)) == (told, 3)


def test_a_trial_tells_what_was_taken_while_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read before the calls, and not between the end of the clock and the rows that are kept."""
    happened: list[str] = []

    def noted(name: str, function: Any) -> Any:
        return lambda *given: (happened.append(name), function(*given))[1]

    place = TimingWorker(subjects()["reference_numpy"], "cpu")
    place.prepare(CASE, 1)
    place.prepared = replace(place.prepared, call=noted("call", place.prepared.call))
    watched = noted("account", lambda: noted("account", lambda: Taken(0.1, 0.25, 1.0)))
    monkeypatch.setattr(timing_worker, "watch_processors", watched)
    monkeypatch.setattr(timing_worker, "taken", noted("rows", timing_worker.taken))
    monkeypatch.setattr(timing_worker, "clock_for", noted("clock", timing_worker.clock_for))
    found = place.trial(CASE, 1, (3, 1), 1, 10.0)
    assert happened == ["clock", "account", "call", "rows", "account"]
    assert found.stolen == 0.25
    assert found.words == (timing_worker.TRIAL, 3, 1, 0)


@pytest.mark.parametrize(
    ("shares", "patience", "asked", "kept"),
    [
        ([None], float("inf"), 1, 1),
        ([0.0], float("inf"), 1, 1),
        ([0.02], float("inf"), 1, 1),
        ([0.021, 0.0], float("inf"), 2, 2),
        ([0.5, 0.4, 0.01], float("inf"), 3, 3),
        ([0.5, 0.1, 0.2, 0.3], float("inf"), 4, 2),  # no more attempts
        ([0.5, 0.0], 0.0, 1, 1),  # nor time for them
    ],
)
def test_disturbed_trials_are_repeated_on_other_inputs(
    shares: list[float | None], patience: float, asked: int, kept: int
) -> None:
    process, entry = Scripted(shares), started()
    trial = run_of(process, Budget(again=3)).undisturbed(entry, CASE, 7, patience)
    assert (len(process.words), trial.seconds, entry.repeated) == (asked, kept, asked - 1)
    assert process.words == [(7, attempt) for attempt in range(asked)]


def test_a_repetition_that_fails_is_told_as_one() -> None:
    process, entry = Scripted([0.5, Failed("no result")]), started()
    with pytest.raises(Failed, match="repetition 1: no result"):
        run_of(process, Budget(again=3)).undisturbed(entry, CASE, 0, float("inf"))
    assert entry.repeated == 1


START = "the host took processor time: "


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ([{"stolen": [0.0, None], "repeated": 0}, {}], ""),
        ([{"stolen": None, "repeated": None, "status": "failed"}], ""),
        (
            [{"stolen": [0.0, 0.01], "repeated": 3}],
            f"{START}3 repetitions, and none of the trials that count is disturbed",
        ),
        (
            [{"stolen": [0.5, 0.0], "repeated": 5}, {"stolen": [0.0, 0.3], "repeated": 1}],
            f"{START}6 repetitions, and still 2 of the 4 trials that count are disturbed: "
            "1 of a, 1 of b; their times are too long",
        ),
    ],
)
def test_the_host_has_a_line(told: list[dict[str, Any]], line: str) -> None:
    case = {"subjects": [{"name": name, "status": "measured"} | one for name, one in zip("ab", told, strict=False)]}
    assert line_of_the_host(case) == line
