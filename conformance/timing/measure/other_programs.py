"""What other programs and the host of a virtual machine use of the processors while something is measured.

The system's own account is read before and after (on Linux; in a container it is that of the whole machine). From what
the processors did is subtracted what the host took, and what this process did and those that it started: the threads of
some libraries spin after a call, and are no other program.

A trial is repeated for what the host took, never for how long it took. A long trial is disturbed more often than a
short one, though, and may remain disturbed whatever is done: a pair of which one side is leans against that side.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from conformance.timing.measure.processes import processors

ACCOUNT = Path("/proc/stat")
STEAL, IDLE = 8, slice(4, 6)
"""Where "steal", and "idle" with "iowait", stand in a processor's line, in ticks; its name comes first."""
COMPUTED = slice(11, 13)
"""Where "utime" and "stime" stand in a process's line, behind its name, which may hold anything; in ticks."""
BUSY = 0.1
"""Share of the processors from which on what other programs take is told."""
TOLERATED = 0.02
"""Share of a trial that the host may take. A tick of 10 ms, the least that is told, is more of any below 0.25 s."""


class Taken(NamedTuple):
    """Seconds of processor time: what other programs used, what the host used, and what there was in all.

    The system counts ticks: in a short span each may be off by some of them, and `programs` below 0. Add up many.
    """

    programs: float
    host: float
    available: float

    @property
    def counted(self) -> bool:
        """Whether the system counts at all. In some containers its numbers stay the same: `programs` is far below 0."""
        return self.programs >= -BUSY * self.available

    @property
    def share(self) -> float | None:
        """Of programs and host together, or None if nothing is counted. One of two busy processors is 1/2."""
        return max(0.0, (self.programs + self.host) / self.available) if self.counted else None


def watch_processors(threads: int | None = None) -> Callable[[], Taken | None]:
    """Start watching. The function that is returned says what others have used since; None if the system does not.

    threads: how many of the processors of this process count, the first ones; by default all.
    """
    of = processors()[:threads]
    before, own, start = account(of), own_so_far(), time.perf_counter()

    def taken() -> Taken | None:
        after, available = account(of), (time.perf_counter() - start) * len(of)
        if before is None or after is None or available <= 0:
            return None
        used, host = (now - then for now, then in zip(after, before, strict=True))
        return Taken(used - host - (own_so_far() - own), host, available)

    return taken


def account(of: Iterable[int]) -> tuple[float, float] | None:
    """Seconds since the machine was started that these processors were not idle, and those of them that the host took.

    None where no system tells it of each of them: a container may be told of fewer, under other numbers.
    """
    names = {f"cpu{number}" for number in of}
    try:
        lines = [line.split() for line in ACCOUNT.read_text().splitlines()]
    except OSError:
        return None
    ticks = [[0, *map(int, words[1 : STEAL + 1])] for words in lines if len(words) > STEAL and words[0] in names]
    if not ticks or len(ticks) != len(names):
        return None
    used, stolen = sum(sum(t) - sum(t[IDLE]) for t in ticks), sum(t[STEAL] for t in ticks)
    return used / os.sysconf("SC_CLK_TCK"), stolen / os.sysconf("SC_CLK_TCK")


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


def in_words(taken: Iterable[Taken | None], verb: str = "took") -> str | None:
    """Return how busy other programs kept the machine over all of these; empty if they used less than BUSY of it.

    None if the system does not say.
    """
    known = [one for one in taken if one is not None]
    whole = Taken(*map(sum, zip(*known, strict=True))) if known else None
    if whole is None or not whole.counted:
        return None
    share = whole.programs / whole.available
    return "" if share < BUSY else f"they {verb} {min(share, 1):.0%} of its processors"
