"""A time limit that also ends what catches every exception, and leaves alone the alarms of others."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, TypeVar

LONGEST = 1e6
"""Seconds of the longest time limit: more than any system's alarm can count is nobody's intention."""
AGAIN = 1.0
"""Seconds after which somebody is told again who did not heed that the time is over."""

Limit = TypeVar("Limit", float, float | None)


class TooSlow(BaseException):
    """The time limit passed. No `Exception`, which a subject might catch and go on."""


def valid_limit(seconds: Limit) -> Limit:
    """The limit itself; ValueError where it is none."""
    if seconds is not None and not 0 < seconds <= LONGEST:
        raise ValueError(f"time_limit must be above 0 and at most {LONGEST:g} seconds, got {seconds!r}")
    return seconds


class limited:
    """Raises `TooSlow` in here once the time is over; on the main thread of a system with alarms, elsewhere not.

    Whoever catches that and goes on is told again every second, from the second time on also at its next line, where a
    loop around a `try` no longer catches it. An alarm that was set before goes off in here when it is due, or is set
    again afterwards; `raised_by_another` is what it has raised.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.armed, self.told = False, 0
        self.raised_by_another: BaseException | None = None

    def __enter__(self) -> limited:
        main = threading.current_thread() is threading.main_thread()
        if self.seconds is None or not hasattr(signal, "setitimer") or not main:
            return self
        self.around, self.tracing = sys._getframe(1), sys.gettrace()
        delay, self.interval = signal.setitimer(signal.ITIMER_REAL, 0)
        self.before: Any = signal.signal(signal.SIGALRM, self.alarm)
        now = time.monotonic()
        self.due, self.due_of_others = now + self.seconds, now + delay if delay else math.inf
        self.armed = True
        self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self.told and (error is None or isinstance(error, Exception)):
            raise TooSlow  # what was made of it, by whoever caught it, does not count

    def end(self) -> None:
        """No alarm from here on; may be called again."""
        if not self.armed:
            return
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if self.before is None else self.before)
        if self.told > 1:
            sys.settrace(self.tracing)
        del self.around
        if self.due_of_others < math.inf:
            signal.setitimer(signal.ITIMER_REAL, max(self.due_of_others - time.monotonic(), 1e-6), self.interval)

    def arm(self) -> None:
        due = min(self.due, self.due_of_others) if callable(self.before) else self.due
        signal.setitimer(signal.ITIMER_REAL, max(due - time.monotonic(), 1e-6))

    def alarm(self, number: int, frame: FrameType | None) -> None:
        if not self.armed:
            return
        if callable(self.before) and time.monotonic() >= self.due_of_others:
            self.due_of_others = time.monotonic() + self.interval if self.interval else math.inf
            self.arm()
            self.let_ring(number, frame)
        elif time.monotonic() >= self.due:
            self.due = time.monotonic() + AGAIN
            self.arm()
            self.told += 1
            if self.told > 1:
                self.tell_at_every_line(frame)
            raise TooSlow
        else:
            self.arm()

    def let_ring(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except BaseException as error:
            self.raised_by_another = error
            raise

    def tell_at_every_line(self, frame: FrameType | None) -> None:
        """By way of the tracing function, which Python calls before each line and drops once it has raised."""

        def tell(frame: FrameType, event: str, argument: Any) -> Any:
            if self.armed and event == "line":  # at an exception's own event it would be caught like that exception
                raise TooSlow
            return tell

        while frame is not None and frame is not self.around:
            frame.f_trace = tell
            frame = frame.f_back
        sys.settrace(tell)
