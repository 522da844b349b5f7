"""Ask a subject in a process that has called nothing before."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any

from conformance.checks.findings import Finding, ProcessEnded
from conformance.runner.in_process import Step, failed_call
from conformance.runner.own_time import ready_in_time
from conformance.runner.process_lifetime import end_process, start_process
from conformance.runner.template import Reply, Request
from conformance.subjects.targets import Target

LONGEST, BUDGET = 60.0, 15.0
"""Seconds for one question, and seconds of processor time for all questions of one check."""
MARGIN = 300.0
"""Seconds beyond those of a question, in which the template process may start and import a framework."""
PRELOADED = {"torch": ("torch", "torch.fx.experimental.symbolic_shapes", "torch._functorch.autograd_function")}
"""What the template imports for subjects of a framework, with what their first gradient imports.

Not JAX: it starts threads, which no fork survives.
"""


class Template:
    """The template process, started when it is first needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None
        self.owner = 0

    def ask(self, request: Request) -> Reply | None:
        """None where the template process does not answer."""
        pipe = self.connect()
        try:
            pipe.send(request)
            if self.process is not None and ready_in_time(pipe.poll, self.process.pid, request.seconds + MARGIN):
                found: Reply = pipe.recv()
                return found
        except (EOFError, OSError):
            pass
        except BaseException:  # an answer that nobody took must not be the next one's
            self.close()
            raise
        self.close()
        return None

    def connect(self) -> Connection:
        running = self.process is not None and self.owner == os.getpid() and self.process.poll() is None
        if running and self.pipe is not None:
            return self.pipe
        self.process, ours = start_process("conformance.runner.template:serve", stderr=subprocess.DEVNULL)
        self.pipe, self.owner = Connection(ours.detach()), os.getpid()
        return self.pipe

    def close(self) -> None:
        if self.process is not None and self.owner == os.getpid():
            end_process(self.process)
        if self.pipe is not None:
            with contextlib.suppress(OSError):
                self.pipe.close()
        self.process = self.pipe = None


TEMPLATE = Template()
atexit.register(TEMPLATE.close)
"""One for all checks of this process."""


class FreshProcesses:
    """Fresh processes for one target, as long as the time for them lasts."""

    def __init__(self, target: Target | None, time_limit: float | None) -> None:
        self.target = None if target is None else loadable(target)
        self.time_limit, self.left = time_limit, BUDGET

    def ask(self, steps: Sequence[Step]) -> list[list[Finding]] | None:
        """The findings of each step, in one process that takes them in order; None where that cannot be told."""
        if self.target is None or self.left <= 0 or not hasattr(os, "fork"):
            return None
        try:
            payload = pickle.dumps((self.target, self.time_limit, list(steps)))
            request = Request(
                PRELOADED.get(self.target.arrays or "", ()), sys.path, os.getcwd(), dict(os.environ), LONGEST, payload
            )
        except Exception:  # what cannot be sent cannot be asked; nor is there a working folder always
            return None
        found = TEMPLATE.ask(request)
        self.left -= BUDGET if found is None else found.seconds
        if found is None or not found.in_time:
            return None
        if len(found.answers) == len(steps):
            return found.answers
        if found.code == 0:  # the target was not loaded, or the judge failed
            return None
        return found.answers + [failed_call(ProcessEnded(found.code))] * (len(steps) - len(found.answers))


def loadable(target: Target) -> Target | None:
    """The target by a name under which another process finds it; None where it has none."""
    subject = name_of(target.subject)
    functions = {name: value for name, value in target.given.items() if callable(value)}
    if subject is None or not all(name_of(function) for function in functions.values()):
        return None
    return replace(target, subject=subject, name=target.title)


def name_of(subject: Any) -> str | None:
    """`module:function` of a function that is found by it; an object may hold what earlier calls have left in it."""
    if isinstance(subject, str):
        return subject
    if not isinstance(subject, FunctionType) or subject.__module__ == "__main__":
        return None
    found: Any = sys.modules.get(subject.__module__)
    for part in subject.__qualname__.split("."):
        found = getattr(found, part, None)
    return f"{subject.__module__}:{subject.__qualname__}" if found is subject else None
