"""Own time, how long a process has had without the time in which others had the processors; and limits of it.

A time limit counts own time, or the verdict would depend on what else runs on the machine. All wall time is a process's
own in which it sleeps, or waits for a lock or a file. A thread that could run and waits for a processor is starved.

Linux counts for every thread how long it ran and how long it waited to run. Let R and S be the sums over the threads of
a process and of the processes that it has started, and W the wall time. Others took at most S. Where R + S > W, several
threads could run at once; the wall time counts as starved in the proportion of S to R + S. So

    own time = max(W - S * min(1, W / (R + S)), R / cores)

The second term is for a process with more threads than cores, which starves itself: in less time all cores together
cannot run so long. On an idle machine S is about 0 and own time is wall time.

On a system that does not count as Linux does, only wall time can be had: it counts divided by how many times as many
processes want to run as there are cores, and the finding says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TypeVar

POLL_SECONDS = 0.2
"""Seconds between two looks at a process that is waited for."""
TASKS = "/proc/{}/task"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Times = dict[int, tuple[float, float]]
"""Of each thread, by its identifier: seconds for which it ran, and for which it waited to run."""


def measure_crowding() -> float:
    """Processes that want to run, for each core, in the last minute; at least 1, also where the system does not say.

    Where it counts own time, that is 1: nothing else is needed.
    """
    if times(os.getpid()):
        return 1.0
    try:
        return max(1.0, os.getloadavg()[0] / CORES)
    except (AttributeError, OSError):
        return 1.0


def times(pid: int) -> Times:
    """What the system has counted for the threads of a process and of those that it has started; {} if it does not."""
    counted: Times = {}
    processes = [pid]
    for process in processes:
        with contextlib.suppress(OSError, ValueError):  # no such system, or the process has ended
            for thread in Path(TASKS.format(process)).iterdir():
                with contextlib.suppress(OSError, ValueError):
                    ran, waited, _ = (thread / "schedstat").read_text().split()
                    counted[int(thread.name)] = int(ran) / 1e9, int(waited) / 1e9
                    processes += map(int, (thread / "children").read_text().split())
    return counted


def read_times(pid: int) -> tuple[float, Times]:
    return time.monotonic(), times(pid)


@lru_cache(maxsize=1)
def read_recent_times(pid: int, period: tuple[int, float]) -> tuple[float, Times]:
    """As `read_times`, for all calls with the same period: a reading takes some 20 microseconds for each thread."""
    return read_times(pid)


class OwnTime:
    """The own time of a process from now on.

    tolerance: seconds of starved time before now that may count as later. Short calls then share one reading.
    """

    def __init__(self, pid: int, tolerance: float = 0.0) -> None:
        start = time.monotonic()
        self.pid = pid
        self.since, self.first = (
            read_recent_times(pid, (int(start / tolerance), tolerance)) if tolerance else read_times(pid)
        )
        self.before, self.latest = start - self.since, self.first
        self.crowding = 1.0

    def elapsed_seconds(self) -> float:
        """Seconds. Call it now and then: of threads that have ended, it knows what an earlier call has seen."""
        at, counted = read_times(self.pid)
        self.latest = self.latest | counted
        if not self.latest:
            self.crowding = max(self.crowding, measure_crowding())
            return (at - self.since - self.before) / self.crowding
        ran = waited = 0.0
        for thread, (ran_then, waited_then) in self.latest.items():
            ran_first, waited_first = self.first.get(thread, (0.0, 0.0))
            ran += max(ran_then - ran_first, 0.0)  # below 0 where another thread has an ended one's identifier
            waited += max(waited_then - waited_first, 0.0)
        return own_part(at - self.since, ran, waited) - self.before


def own_part(wall: float, ran: float, waited: float) -> float:
    """The own time in some wall time, of threads that ran, and waited to run, for so many seconds together."""
    starved = waited * min(1.0, wall / (ran + waited)) if waited else 0.0
    return max(wall - starved, ran / CORES)


def ready_in_time(ready: Callable[[float], object], pid: int, seconds: float | None) -> bool:
    """Whether something is ready before a process has had so much own time, or at all for None.

    ready: waits for at most the seconds that it is given, and returns whether it is ready.
    """
    if ready(POLL_SECONDS):
        return True
    own = None if seconds is None else OwnTime(pid)
    while not ready(POLL_SECONDS):
        if own is not None and seconds is not None and own.elapsed_seconds() > seconds - POLL_SECONDS:
            return False
    return True


# --- a time limit in this process: alarms -----------------------------------------------------------------------------


LONGEST = 1e6
"""Seconds of the longest time limit: more than any system's alarm can count is nobody's intention."""

ALARMS, SHORTEST = 10, 1e-3
"""So many alarms within a time limit, each for a look at the own time; and seconds to the next one at least."""

Limit = TypeVar("Limit", float, float | None)


class TooSlow(BaseException):
    """The time limit passed. No `Exception`, which a subject might catch and go on."""


def valid_limit(seconds: Limit) -> Limit:
    """The limit itself; ValueError where it is none."""
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise ValueError(f"time_limit must be above 0 and at most {LONGEST:g} seconds, got {seconds!r}")
    return seconds


@contextlib.contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Raise `TooSlow` in here once so much own time is over (see `own_time.py`).

    It does so on the main thread of a system with alarms; elsewhere never.

    An alarm that somebody else has set is due again afterwards. Code that catches `TooSlow` gets no second one, and
    the time counts as over; native code, and code that goes on for ever, are for a subprocess.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not hasattr(signal, "setitimer") or not main:
        yield
        return
    over = False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal over
        left = seconds - own.elapsed_seconds()
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, min(max(left, SHORTEST), seconds / ALARMS))
            return
        over = True
        raise TooSlow

    own = OwnTime(os.getpid(), seconds / ALARMS)
    start, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds / ALARMS)
    try:
        yield
    except Exception:
        if not over:
            raise
    finally:
        left = max(delay - (time.monotonic() - start), 1e-6) if delay else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, left, interval)
    if over:
        raise TooSlow
