"""How a subject is examined: in this process, under a time limit, with everything that goes wrong turned into findings.

`child.py` does the same in a process of its own, for subjects that may hang in native code or crash.
"""

from __future__ import annotations

import contextlib
import io
import signal
import threading
from collections.abc import Iterator
from typing import Any

from conformance.examinations import EXAMINATIONS
from conformance.subjects import Subject
from conformance.verdict import Finding

TIME_LIMIT = 30.0
"""Seconds for one examination (one case, a few calls), compilation included."""


class TooSlow(BaseException):
    """The time limit passed. No `Exception`, which a subject might catch and go on."""


def broken(message: str) -> list[Finding]:
    return [Finding("call", float("inf"), message=message)]


class Examiner:
    """Examines a subject here. `printed`: what it wrote to standard output. `overrun`: examinations that took too long.

    time_limit: None for no limit and no capture of what is printed.
    """

    def __init__(self, subject: Subject, time_limit: float | None = None) -> None:
        self.subject, self.time_limit = subject, time_limit
        self.name, self.declaration = subject.name, subject.declaration
        self.printed, self.overrun = "", 0

    def __call__(self, examined_by: str, material: Any, shared: Any) -> list[Finding]:
        """The findings; an exception that the subject raises is a finding like any other."""
        output = io.StringIO()
        captured = contextlib.nullcontext() if self.time_limit is None else contextlib.redirect_stdout(output)
        try:
            with captured, limited(self.time_limit):
                return EXAMINATIONS[examined_by].examine(self.subject, material, shared)
        except TooSlow:
            self.overrun += 1
            return broken(f"took longer than {self.time_limit:g} s")
        except (Exception, SystemExit) as error:
            return broken(f"raised {type(error).__name__}: {first_line(error)}")
        finally:
            self.printed = self.printed or output.getvalue()

    def close(self) -> None:
        """Nothing is held."""


def first_line(error: BaseException) -> str:
    """Errors of frameworks can be pages long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raises `TooSlow` in here once the time is over; on the main thread of a system with alarms, elsewhere not."""
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def alarm(number: int, frame: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
