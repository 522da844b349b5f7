"""Processor time that the host of a virtual machine gave to others, while this machine had work for the processor.

The system's own account of it is read before and after a trial. So a trial is repeated for what the host did, never
for how long it took. A long trial is disturbed more often than a short one, though, and may remain disturbed
whatever is done: a pair of which one side is leans against that side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.measure.workers import processors

ACCOUNT = Path("/proc/stat")
FIELD = 8
"""Where "steal" stands in a processor's line, behind its name; in ticks of the system."""
IDLE = slice(3, 5)
"""Where "idle" and "iowait" stand among the ticks."""
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


def share(before: float | None, after: float | None, elapsed: float) -> float | None:
    """Of the time that the processors of this process had; two threads on two processors lose 1/2 with one of them."""
    if before is None or after is None or elapsed <= 0:
        return None
    return (after - before) / (elapsed * len(processors()))
