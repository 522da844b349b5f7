"""An examiner in a process of its own: what hangs there is ended, and what crashes there takes nothing with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from conformance.declaration import Declaration
from conformance.guard import Examiner, broken
from conformance.targets import Target
from conformance.verdict import Finding

STARTING = 300.0
"""Seconds that loading the frameworks and the target may take."""


class ChildExaminer(Examiner):
    """As `Examiner`, in a child process, which is started again after it has died or was ended for taking too long."""

    def __init__(self, target: Target, time_limit: float) -> None:
        self.target, self.name, self.time_limit = target, target.title, time_limit
        self.printed, self.overrun = "", 0
        self.process: Any = None
        self.pipe: Any = None
        self.context: Any = multiprocessing.get_context("spawn")
        self.declaration = self.start()

    def start(self) -> Declaration:
        """ValueError where the target cannot be loaded, as in `Target.make`."""
        self.pipe, other = self.context.Pipe()
        self.process = self.context.Process(target=serve, args=(other, self.target, self.time_limit), daemon=True)
        self.process.start()
        other.close()
        try:
            loaded = self.pipe.recv() if self.pipe.poll(STARTING) else f"not loaded after {STARTING:g} s"
        except EOFError:
            self.process.join()
            loaded = f"while it was loaded {died(self.process.exitcode)}"
        if isinstance(loaded, Declaration):
            return loaded
        self.close()
        raise ValueError(loaded)

    def __call__(self, examined_by: str, material: Any, shared: Any) -> list[Finding]:
        if self.process is None:
            self.start()
        try:
            self.pipe.send((examined_by, material, shared))
            # The child ends what Python can end itself; a little later only ending the child is left.
            if not self.pipe.poll(self.time_limit + 5):
                self.overrun += 1
                self.close()
                return broken(f"took longer than {self.time_limit:g} s, and its process was ended")
            findings, printed, overrun = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            message = died(self.process.exitcode)
            self.close()
            return broken(message)
        self.printed, self.overrun = self.printed or printed, self.overrun + overrun
        return findings

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def died(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process died of signal {-code}"


def serve(pipe: Connection, target: Target, time_limit: float) -> None:
    """The child: what is asked is examined, until nobody asks any more."""
    from conformance.__main__ import keep_compiled_code

    keep_compiled_code()
    with open(os.devnull, "w") as nowhere:  # what native code prints is for nobody
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    try:
        examiner = Examiner(target.make(), time_limit)
    except ValueError as error:
        pipe.send(str(error))
        return
    pipe.send(replace(examiner.declaration, vjp=None))
    with contextlib.suppress(EOFError):
        while True:
            asked = pipe.recv()
            findings = examiner(*asked)
            pipe.send((findings, examiner.printed, examiner.overrun))
            examiner.overrun = 0
