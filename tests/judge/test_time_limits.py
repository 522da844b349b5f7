"""A time limit ends what hangs, and does not count the time in which others have the processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance import check
from conformance.checks import findings
from conformance.reports.sentences import describe_finding
from conformance.runner import own_time
from conformance.runner.in_process import failed_call

LIMIT = 0.1
SPIN = [sys.executable, "-c", "while True: pass"]


def spins() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(60)


def is_locked() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def has_a_child_that(line: str) -> Callable[[], None]:
    def waits() -> None:
        with subprocess.Popen([sys.executable, "-c", line]) as process:
            try:
                process.wait()
            finally:
                process.kill()

    return waits


HANGS = {
    "spins": spins,
    "sleeps": sleeps,
    "is locked": is_locked,
    "a child that sleeps": has_a_child_that("import time; time.sleep(60)"),
    "a child that spins": has_a_child_that("while True: pass"),
}


@pytest.mark.parametrize("name", HANGS)
def test_what_hangs_is_ended(name: str) -> None:
    with pytest.raises(own_time.TooSlow), own_time.limit_time(LIMIT):
        HANGS[name]()


@pytest.fixture
def outer_alarm() -> Iterator[list[float]]:
    """Somebody else's alarms; the times at which they rang."""
    rung: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(time.monotonic()))
    yield rung
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_alarms_of_others_are_kept(outer_alarm: list[float]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    with own_time.limit_time(10):
        time.sleep(0.01)
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.4
    time.sleep(0.6)
    assert len(outer_alarm) == 1


class Clock:
    """A stub: time that passes as the test says, and times of threads as the system would count them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.threads = 0.0, {1: (0.0, 0.0)}
        monkeypatch.setattr(own_time, "read_times", lambda pid: (self.time, dict(self.threads)))
        monkeypatch.setattr(own_time.time, "monotonic", lambda: self.time)

    def passes(self, seconds: float, **threads: tuple[float, float]) -> None:
        """threads: the seconds that each of them ran and waited."""
        self.time += seconds
        for name, (ran, waited) in threads.items():
            before = self.threads.get(int(name[1:]), (0.0, 0.0))
            self.threads[int(name[1:])] = before[0] + ran, before[1] + waited


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_time_that_others_have_does_not_count(clock: Clock) -> None:
    own = own_time.OwnTime(0)
    clock.passes(60, _1=(5, 55))
    assert own.elapsed_seconds() == pytest.approx(max(5, 5 / own_time.CORES))
    clock.passes(10)  # it sleeps
    assert own.elapsed_seconds() == pytest.approx(15)
    clock.passes(10, _2=(4, 6))  # what it has started, while it waits
    del clock.threads[2]
    assert own.elapsed_seconds() == pytest.approx(25)


@pytest.mark.parametrize(
    ("wall", "ran", "waited", "own"),
    [
        (30, 30, 0, 30),  # it spins
        (30, 0, 0, 30),  # it sleeps, or the system does not count
        (30, 5, 25, 5),  # one thread, starved
        (30, 10 * own_time.CORES, 20 * own_time.CORES, 10),  # a thread for each core, starved
        (30, 30 * own_time.CORES, 300 * own_time.CORES, 30),  # many threads, which starve one another
        (30, 1, 9, 21),  # it sleeps for 20 seconds and is starved
    ],
)
def test_own_part(wall: float, ran: float, waited: float, own: float) -> None:
    assert own_time.own_part(wall, ran, waited) == pytest.approx(own)


def test_where_threads_are_not_counted_the_limit_grows_with_the_load(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.threads = {}
    monkeypatch.setattr(own_time, "times", lambda pid: {})
    monkeypatch.setattr(own_time.os, "getloadavg", lambda: (4.0 * own_time.CORES, 0.0, 0.0))
    own = own_time.OwnTime(0)
    clock.passes(60)
    assert own.elapsed_seconds() == pytest.approx(15)
    late = failed_call(findings.TookTooLong(15.0, crowding=own_time.measure_crowding()))[0]
    assert describe_finding(late) == "call: took longer than 15 s (60 s by the clock of a busy machine)"


@pytest.mark.slow
def test_no_honest_subject_is_accused_on_a_busy_machine() -> None:
    """Each core has four processes that never rest; a call that sleeps too long is still found."""
    others = [subprocess.Popen(SPIN) for _ in range(4 * own_time.CORES)]
    try:
        given: dict[str, Any] = {"effort": "quick", "seed": 1, "time_limit": 1.0, "dtypes": ["float32"]}
        assert check("reference_numpy:layer_norm", "layer_norm", arrays="numpy", **given).conforms
        late = check(norm_that_sleeps, "layer_norm", arrays="numpy", rules=["NORM-1"], **given)
        assert {violation.finding.kind for violation in late.violations} == {"took_too_long"}
    finally:
        for other in others:
            other.kill()
            other.wait()


def norm_that_sleeps(x: Any, weight: Any, bias: Any = None, *, eps: float = 1e-5) -> Any:
    time.sleep(30)


@pytest.mark.parametrize("starved", [True, False])
def test_a_starved_process_is_waited_for(clock: Clock, starved: bool) -> None:
    """And one that spins as long is not."""

    def ready(look: float) -> bool:
        clock.passes(1, _1=(0.1, 0.9) if starved else (1, 0))
        return clock.time >= 50

    assert own_time.ready_in_time(ready, 0, 30.0) is starved
    assert clock.time == pytest.approx(50 if starved else 32, abs=1)


@pytest.mark.parametrize("starved", [True, False])
def test_a_starved_call_is_not_ended(monkeypatch: pytest.MonkeyPatch, starved: bool) -> None:
    """It sleeps here, and the stub says that it waited for a processor."""

    class Starved(own_time.OwnTime):
        def elapsed_seconds(self) -> float:
            return super().elapsed_seconds() / 20

    if starved:
        monkeypatch.setattr(own_time, "OwnTime", Starved)
    try:
        with own_time.limit_time(LIMIT):
            time.sleep(4 * LIMIT)
    except own_time.TooSlow:
        assert not starved
    else:
        assert starved


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or not own_time.times(os.getpid()), reason="not counted here")
@pytest.mark.parametrize("tasks", [own_time.TASKS, "/nowhere/{}"])
def test_rivals_for_the_only_core(tasks: str) -> None:
    """Two that spin have two thirds of it. Where the system counts neither that nor its load, the call is ended."""
    core = {min(os.sched_getaffinity(0))}
    code = f"""
import os, time
os.sched_setaffinity(0, {core})
from conformance.runner import own_time
from conformance.runner.own_time import limit_time
own_time.TASKS = {tasks!r}
os.getloadavg = lambda: (0.0, 0.0, 0.0)
end = time.process_time() + 0.8
with limit_time(1.2):
    while time.process_time() < end: pass
"""
    rivals = [subprocess.Popen(SPIN, preexec_fn=lambda: os.sched_setaffinity(0, core)) for _ in range(2)]
    try:
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert ("TooSlow" in ended.stderr, bool(ended.returncode)) == (tasks != own_time.TASKS,) * 2
