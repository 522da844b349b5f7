"""The template process: it has loaded the judge and called nothing, and forks a fresh process for every question.

A fork costs milliseconds where a start costs seconds, so a subject's own subprocess forks the template before it loads
the subject. All forks are safe because nothing has run before: no framework has threads of its own yet. JAX is imported
after the fork only, by the target.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformance.runner.in_process import JudgeError, Runner, judging
from conformance.runner.own_time import LOOKING, OwnTime, ready_in_time
from conformance.runner.process_lifetime import end_process, start_process
from conformance.subjects.targets import Target

CHUNK = 1 << 16
MARGIN = 300.0
"""Seconds beyond those of a question, in which the template process may start and import a framework."""
PRELOADED = {"torch": ("torch", "torch.fx.experimental.symbolic_shapes", "torch._functorch.autograd_function")}
"""What the template imports for subjects of a framework, with what their first gradient imports.

Not JAX: it starts threads, which no fork survives.
"""
CHECKING = ("conformance.checks.catalogue", "conformance.runner.compiled_code", "conformance.sampling.operations")
"""What every fresh process would import."""


class Request(NamedTuple):
    """What one fresh process is asked.

    preload: modules that the template itself imports first. seconds: own time that the process may take. payload: a
    pickled (target, time limit, steps); a step is (check, its example, what the check has prepared).
    """

    preload: tuple[str, ...]
    path: list[str]
    folder: str
    environment: dict[str, str]
    seconds: float
    payload: bytes


class Reply(NamedTuple):
    """answers: findings of each step that ended. code: the exit code, below 0 a signal. in_time: whether it ended.

    seconds: processor time, which a busy machine does not stretch.
    """

    answers: list[Any]
    code: int
    in_time: bool
    seconds: float


class Template:
    """The template process, seen from the judge; it ends when its socket is closed.

    pid: its own. process: where this process has started it, and no subprocess has forked it.
    """

    def __init__(self, pid: int, ours: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.process = pid, process
        self.pipe = Connection(ours.detach())

    def ask(self, request: Request) -> Reply | None:
        """None where the template process does not answer."""
        try:
            self.pipe.send(request)
            if ready_in_time(self.pipe.poll, self.pid, request.seconds + MARGIN):
                found: Reply = self.pipe.recv()
                return found
        except (EOFError, OSError):
            pass
        except BaseException:  # an answer that nobody took must not be the next one's
            self.close()
            raise
        self.close()
        return None

    @property
    def closed(self) -> bool:
        return self.pipe.closed

    def close(self) -> None:
        self.pipe.close()
        if self.process is not None:
            end_process(self.process)


def start_template() -> Template:
    """Start a template process for subjects of this process."""
    process, ours = start_process("conformance.runner.template:serve", stderr=subprocess.DEVNULL)
    return Template(process.pid, ours, process)


def preloaded_modules(target: Target) -> tuple[str, ...]:
    """What a template imports for a target; where nobody says which arrays it takes, its file tells."""
    arrays, file = target.arrays, str(target.subject).partition(":")[0]
    if arrays is None and file.endswith(".py"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = Path(file).read_text()
            arrays = next((name for name in PRELOADED if f"import {name}" in text), None)
    return PRELOADED.get(arrays or "", ())


def fork_template(modules: Iterable[str]) -> tuple[int, socket.socket]:
    """Fork a template process from this one, which has called nothing yet; return its pid and the judge's socket."""
    preload(modules)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setsid()  # the judge may kill the session of the process that forks
            close_descriptors(theirs.fileno())
            serve(theirs.detach())
        os._exit(0)
    theirs.close()
    return pid, ours


def close_descriptors(kept: int) -> None:
    """Close all but one and standard error, or the judge would not see the end of the process that has forked."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def preload(modules: Iterable[str]) -> None:
    for module in (*CHECKING, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def serve(descriptor: int) -> None:
    """Answer requests until the other end of the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge ends this process
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while True:
            request: Request = pipe.recv()
            preload(request.preload)
            pipe.send(reply(request, pipe))


def reply(request: Request, pipe: Connection) -> Reply:
    """Fork a process for the request, and collect what it writes until it ends, has had its time, or nobody waits."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with contextlib.suppress(BaseException):
            answer(request, writer)
        os._exit(0)
    os.close(writer)
    written, own, ended = b"", OwnTime(child), True
    while True:
        ready, _, _ = select.select([reader, pipe.fileno()], [], [], LOOKING)
        if reader not in ready:
            if not ready and own.elapsed_seconds() <= request.seconds:
                continue
            ended = False
            os.kill(child, signal.SIGKILL)
            break
        chunk = os.read(reader, CHUNK)
        if not chunk:
            break
        written += chunk
    os.close(reader)
    _, status, used = os.wait4(child, 0)
    return Reply(answers_in(written), os.waitstatus_to_exitcode(status), ended, used.ru_utime + used.ru_stime)


def answers_in(written: bytes) -> list[Any]:
    """Whole answers, of which each begins with its length."""
    found = []
    while len(written) >= 8:
        size = int.from_bytes(written[:8], "big")
        if len(written) < 8 + size:
            break
        found.append(pickle.loads(written[8 : 8 + size]))
        written = written[8 + size :]
    return found


def answer(request: Request, writer: int) -> None:
    """The fresh process: load the target, take the steps in order, and write the findings of each at once."""
    from conformance.runner.compiled_code import keep_compiled_code

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.path[:] = request.path
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    different_random_numbers()
    keep_compiled_code()
    target, time_limit, steps = pickle.loads(request.payload)
    runner = Runner(target.make(), time_limit)
    for step in steps:
        try:
            with judging():
                write(writer, runner(*step))
        except (RuntimeError, JudgeError):
            return


def write(writer: int, value: Any) -> None:
    data = pickle.dumps(value)
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(writer, data) :]


def different_random_numbers() -> None:
    """Forks of one process would all draw the same."""
    random.seed()
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
