"""Processor time that the host of a virtual machine gave to others, while this machine had work for the processor.

The system's own account of it is read before and after a trial. So a trial is repeated for what the host did, never
for how long it took. A long trial is disturbed more often than a short one, though, and may remain disturbed
whatever is done: a pair of which one side is leans against that side.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure.workers import processors

ACCOUNT = Path("/proc/stat")
FIELD = 8
"""Where "steal" stands in a processor's line, behind its name; in ticks of the system."""
COMPUTED = slice(11, 13)
"""Where "utime" and "stime" stand in a process's line, behind its name, which may hold anything; in ticks."""
IDLE = slice(3, 5)
"""Where "idle" and "iowait" stand among the ticks."""
BUSY = 0.1
"""Share of the processors from which on what other programs take is told."""
TOLERATED = 0.02
"""Share of a trial's processor time. A tick of 10 ms, the least that is told, is more of any trial below 0.25 s."""


def stolen_so_far() -> float | None:
    """Seconds since the machine was started, over the processors of this process; None where no system tells it."""
    try:
        lines = ACCOUNT.read_text().splitlines()
    except OSError:
        return None
    return stolen_from(lines, processors())


def stolen_from(lines: Iterable[str], of: Iterable[int]) -> float | None:
    """None unless every one of them has its line: a container may be told of fewer, under other numbers."""
    names = {f"cpu{number}" for number in of}
    ticks = [int(words[FIELD]) for line in lines if len(words := line.split()) > FIELD and words[0] in names]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks and len(ticks) == len(names) else None


def used_so_far() -> float | None:
    """Seconds in which the processors of this process were not idle, with steal time; None where no system tells it."""
    try:
        lines = ACCOUNT.read_text().splitlines()
    except OSError:
        return None
    return used_from(lines, processors())


def used_from(lines: Iterable[str], of: Iterable[int]) -> float | None:
    """As `stolen_from`; all ticks count but those in which a processor was idle."""
    names = {f"cpu{number}" for number in of}
    found = [list(map(int, words[1 : FIELD + 1])) for line in lines if (words := line.split()) and words[0] in names]
    if not found or len(found) != len(names) or any(len(ticks) < FIELD for ticks in found):
        return None
    return sum(sum(ticks) - sum(ticks[IDLE]) for ticks in found) / os.sysconf("SC_CLK_TCK")


def watching_others() -> Callable[[], float | None]:
    """Return what tells the share of the processor time that others took from now on; see `used_by_others`."""
    before, own, start = used_so_far(), time.process_time(), time.perf_counter()
    return lambda: used_by_others(before, used_so_far(), time.process_time() - own, time.perf_counter() - start)


def used_by_others(before: float | None, after: float | None, own: float, elapsed: float) -> float | None:
    """Share of the processor time that other programs and the host took. own: seconds that this process computed."""
    found = share(before, after, elapsed)
    return None if found is None else max(0.0, found - own / (elapsed * len(processors())))


def own_so_far() -> float:
    """Seconds that this process and those that it started have computed; of the latter those that have not ended."""
    return time.process_time() + sum(computed(child.pid) for child in multiprocessing.active_children())


def computed(pid: int | None) -> float:
    """Seconds that a process has computed; 0 where no system tells it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[COMPUTED])) / os.sysconf("SC_CLK_TCK")


class Taken(NamedTuple):
    """Seconds of processor time that other programs took, and how many the processors of this process had."""

    others: float
    there: float


def watching_programs() -> Callable[[], Taken | None]:
    """Return what tells how much other programs took from now on, without the host; None where no system tells it.

    The processes that this one started are no other programs: the threads of some libraries spin after a call. The
    system counts ticks, so in a short span `others` may be off by some of them, and below 0. Add up many.
    """
    before, stolen, own, start = used_so_far(), stolen_so_far(), own_so_far(), time.perf_counter()

    def taken() -> Taken | None:
        used, by_host, elapsed = used_so_far(), stolen_so_far(), time.perf_counter() - start
        if before is None or stolen is None or used is None or by_host is None:
            return None
        others = used - before - (by_host - stolen) - (own_so_far() - own)
        return Taken(others, elapsed * len(processors()))

    return taken


def in_words(taken: Iterable[Taken | None]) -> str | None:
    """Return how busy other programs kept the machine over all of these; empty if they took less than BUSY of it.

    None if the system does not tell.
    """
    told = [one for one in taken if one is not None]
    there = sum(one.there for one in told)
    if there <= 0:
        return None
    others = sum(one.others for one in told) / there
    return "" if others < BUSY else f"they took {min(others, 1):.0%} of its processors"


def share(before: float | None, after: float | None, elapsed: float) -> float | None:
    """Of the time that the processors of this process had; two threads on two processors lose 1/2 with one of them."""
    if before is None or after is None or elapsed <= 0:
        return None
    return (after - before) / (elapsed * len(processors()))
