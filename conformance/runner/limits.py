"""A time limit in this process: alarms."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

from conformance.runner.own_time import OwnTime

LONGEST = 1e6
"""Seconds of the longest time limit: more than any system's alarm can count is nobody's intention."""

LOOKS, SHORTEST = 10, 1e-3
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
            signal.setitimer(signal.ITIMER_REAL, min(max(left, SHORTEST), seconds / LOOKS))
            return
        over = True
        raise TooSlow

    own = OwnTime(os.getpid(), seconds / LOOKS)
    start, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds / LOOKS)
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
