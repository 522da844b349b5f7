"""Trials from which the host of a virtual machine took processor time: seen, repeated, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import Case
from benchmarks.measure import steal_time, timing_worker
from benchmarks.measure.rounds import Budget
from benchmarks.measure.running import Entry, Plan, Run
from benchmarks.measure.timing_worker import Start, TimingWorker, Trial
from benchmarks.measure.workers import Failed
from benchmarks.results.tables import line_of_the_host
from benchmarks.subjects.registry import subjects
from benchmarks.verify.row_sampling import Place

CASE = Case("causal", kind="causal", B=1, H=2, G=2, Q=32, K=32, D=8, V=8)
ACCOUNT = """\
cpu  100 0 50 900 5 0 3 70 0 0
cpu0 50 0 25 450 2 0 1 40 0 0
cpu1 30 0 15 250 2 0 1 20 0 0
cpu10 20 0 10 200 1 0 1 10 0 0
intr 4711 8 9 10 11 12 13 14 15
""".splitlines()


@pytest.mark.parametrize(("of", "ticks"), [((0, 1), 60), ((1,), 20), ((10,), 10), ((0, 1, 10), 70)])
def test_the_account_is_read_for_these_processors(monkeypatch: pytest.MonkeyPatch, of: Any, ticks: int) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert steal_time.stolen_from(ACCOUNT, of) == ticks / 100


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(steal_time, "ACCOUNT", tmp_path / "nowhere")
    assert steal_time.stolen_so_far() is None
    assert steal_time.stolen_from(["cpu0 1 2 3"], (0,)) is None
    assert steal_time.stolen_from(ACCOUNT, (1, 2)) is None  # a container is not told of all of them
    assert steal_time.share(None, None, 1.0) is None


def test_a_trial_tells_what_was_taken_while_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read before the calls, and not between the end of the clock and the rows that are kept."""
    happened: list[str] = []
    seconds = count(0.0, 0.25)

    def read() -> float:
        happened.append("account")
        return next(seconds)

    def noted(name: str, function: Any) -> Any:
        return lambda *given: (happened.append(name), function(*given))[1]

    place = TimingWorker(subjects()["reference_numpy"], "cpu")
    place.prepare(CASE, 1)
    place.prepared = replace(place.prepared, call=noted("call", place.prepared.call))
    monkeypatch.setattr(timing_worker, "stolen_so_far", read)
    monkeypatch.setattr(timing_worker, "taken", noted("rows", timing_worker.taken))
    monkeypatch.setattr(timing_worker.time, "perf_counter", count(10.0, 0.5).__next__)
    monkeypatch.setattr(steal_time, "processors", lambda: [0, 1])
    clock = noted("clock", timing_worker.clock_for)
    monkeypatch.setattr(timing_worker, "clock_for", clock)
    found = place.trial(CASE, 1, (3, 1), 1, 10.0)
    assert happened == ["clock", "account", "call", "rows", "account"]
    assert found.stolen == pytest.approx(0.25 / (0.5 * 2))
    assert found.words == (timing_worker.TRIAL, 3, 1, 0)


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


@pytest.mark.parametrize(
    ("shares", "asked", "kept"),
    [
        ([None], 1, 1),
        ([0.0], 1, 1),
        ([0.02], 1, 1),
        ([0.021, 0.0], 2, 2),
        ([0.5, 0.4, 0.01], 3, 3),
        ([0.5, 0.1, 0.2, 0.3], 4, 2),  # no more attempts
    ],
)
def test_disturbed_trials_are_repeated_on_other_inputs(shares: list[float | None], asked: int, kept: int) -> None:
    process, entry = Scripted(shares), started()
    trial = run_of(process, Budget(again=3)).undisturbed(entry, CASE, 7, float("inf"))
    assert (len(process.words), trial.seconds, entry.repeated) == (asked, kept, asked - 1)
    assert process.words == [(7, attempt) for attempt in range(asked)]


def test_patience_has_an_end() -> None:
    process, entry = Scripted([0.5, 0.0]), started()
    trial = run_of(process, Budget(again=3)).undisturbed(entry, CASE, 0, 0.0)
    assert (trial.stolen, entry.repeated) == (0.5, 0)


def test_a_repetition_that_fails_is_told_as_one() -> None:
    process, entry = Scripted([0.5, Failed("no result")]), started()
    with pytest.raises(Failed, match="repetition 1: no result"):
        run_of(process, Budget(again=3)).undisturbed(entry, CASE, 0, float("inf"))
    assert entry.repeated == 1


def started() -> Entry:
    return Entry(subjects()["reference_numpy"], start=Start("", "", (), "wall clock", 1.0, 1.0))


def run_of(process: Scripted, budget: Budget) -> Run:
    return Run(Plan("cpu", 2, 1, budget), [], lambda make, given, variables: process)


def test_the_host_has_a_line() -> None:
    def case(*subjects_: dict[str, Any]) -> dict[str, Any]:
        return {
            "subjects": [{"name": name, "status": "measured"} | one for name, one in zip("ab", subjects_, strict=False)]
        }

    assert not line_of_the_host(case({"stolen": [0.0, None], "repeated": 0}, {}))
    assert not line_of_the_host(case({"stolen": None, "repeated": None, "status": "failed"}))
    repeated = line_of_the_host(case({"stolen": [0.0, 0.01], "repeated": 3}))
    assert repeated == "the host took processor time: 3 repetitions, and none of the trials that count is disturbed"
    left = line_of_the_host(case({"stolen": [0.5, 0.0], "repeated": 5}, {"stolen": [0.0, 0.3], "repeated": 1}))
    assert left == (
        "the host took processor time: 6 repetitions, and still 2 of the 4 trials that count are disturbed: "
        "1 of a, 1 of b; their times are too long"
    )
