"""Processor time that the host of a virtual machine gave to others, while this machine had work for the processor.

The system's own account of it is read before and after a trial. So a trial is repeated for what the host did, never
for how long it took. A long trial is disturbed more often than a short one, though, and may remain disturbed
whatever is done: a pair of which one side is leans against that side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measure.workers import processors

ACCOUNT = Path("/proc/stat")
FIELD = 8
"""Where "steal" stands in a processor's line, behind its name; in ticks of the system."""
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
    found = ticks_from(lines, of)
    return None if found is None else sum(ticks[-1] for ticks in found) / os.sysconf("SC_CLK_TCK")


def ticks_from(lines: Iterable[str], of: Iterable[int]) -> list[list[int]] | None:
    """The ticks of every one of these processors, up to the stolen ones; None unless each has its line."""
    names = {f"cpu{number}" for number in of}
    every = (words for line in lines if len(words := line.split()) > FIELD and words[0] in names)
    found = [list(map(int, words[1 : FIELD + 1])) for words in every]
    return found if found and len(found) == len(names) else None


def share(before: float | None, after: float | None, elapsed: float) -> float | None:
    """Of the time that the processors of this process had; two threads on two processors lose 1/2 with one of them."""
    if before is None or after is None or elapsed <= 0:
        return None
    return (after - before) / (elapsed * len(processors()))
