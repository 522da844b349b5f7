"""The template process: it has loaded the judge and called nothing, and forks a fresh process for every question.

A fork costs milliseconds where a start costs seconds. It is safe because nothing has run here: no framework has threads
of its own yet. JAX is imported after the fork only, by the target.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import select
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from conformance.runner.in_process import JudgeError, Runner, judging
from conformance.runner.own_time import LOOKING, OwnTime

CHUNK = 1 << 16
CHECKING = ("conformance.checks.catalogue", "conformance.runner.compiled_code")
"""What every fresh process imports to check: the template does it once."""


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


def serve(descriptor: int) -> None:
    """Answer requests until the other end of the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge ends this process
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while True:
            request: Request = pipe.recv()
            for module in (*CHECKING, *request.preload):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module)
            pipe.send(reply(request))


def reply(request: Request) -> Reply:
    """Fork a process for the request, and collect what it writes until it ends or has had its time."""
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
        ready, _, _ = select.select([reader], [], [], LOOKING)
        if not ready:
            if own.elapsed_seconds() <= request.seconds:
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
