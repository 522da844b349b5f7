"""Ask a subject in a process that has called nothing before.

One process has loaded the judge and called nothing, and forks a fresh process for every question: a fork costs
milliseconds where a start costs seconds. A subject's own process forks that one before it loads the subject, so that
both import a framework once, and have the same settings of the C library and the same order of sets. It is safe: as
nothing has run there, there are at most the threads of NumPy's and PyTorch's libraries, which wait, and expect a
fork. JAX is imported after the fork only, by the target.
"""

from __future__ import annotations

import ast
import atexit
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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from conformance.checks.findings import Finding, ProcessEnded
from conformance.runner.compiled_code import keep_compiled_code
from conformance.runner.in_process import JudgeError, Runner, Step, failed_call, judge_scope
from conformance.runner.memory_limit import limit_memory
from conformance.runner.own_time import POLL_SECONDS, OwnTime
from conformance.runner.process_lifetime import STANDARD_ERROR, STANDARD_INPUT
from conformance.runner.workers import ForkedWorker, NoReply, Worker, encode_call, serve, serve_calls
from conformance.subjects.callables import Target

LONGEST, BUDGET = 60.0, 15.0
"""Seconds for one question, and seconds of processor time for all questions of one check."""
MARGIN = 300.0
"""Seconds beyond those of a question, in which the forking process may start and import a framework."""
CHECKING = ("conformance.checks.catalogue",)
"""What every fresh process imports to check: the forking process does it once."""
PRELOADED = {"torch": ("torch", "torch.fx.experimental.symbolic_shapes", "torch._functorch.autograd_function")}
"""What the forking process imports for subjects of a framework, with what their first gradient imports.

Not JAX: it starts threads, which no fork survives.
"""
CHUNK = 1 << 16


class Request(NamedTuple):
    """What one fresh process is asked.

    preload: modules that the forking process imports first. seconds: own time that the fresh one may take. payload: a
    pickled (target, time limit, steps), which only the fresh process reads, as that imports the target's module.
    """

    preload: tuple[str, ...]
    path: list[str]
    folder: str
    environment: dict[str, str]
    seconds: float
    payload: bytes


class Reply(NamedTuple):
    """findings: of each step that ended. code: the exit code, below 0 a signal. in_time: whether it ended.

    seconds: processor time, which a busy machine does not stretch.
    """

    findings: list[Any]
    code: int
    in_time: bool
    seconds: float


class ForkingProcess:
    """The process that forks. One is for all checks of this process.

    The first process of a subject forks it; where there is none, it is started when it is first needed.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None

    def start_subject(self, target: Target, **options: Any) -> Worker:
        """Start a process for a subject, which forks this one if there is none yet."""
        function, preload = "conformance.runner.fresh:serve_subject", modules_to_preload(target)
        if self.worker is not None or not hasattr(os, "fork"):
            return Worker(function, None, preload, **options)
        ours, theirs = socket.socketpair()
        with theirs:
            worker = Worker(function, theirs.fileno(), preload, pass_fds=[theirs.fileno()], **options)
        self.worker = ForkedWorker(ours)
        return worker

    def ask(self, request: Request) -> Reply | None:
        """None where the process does not reply."""
        if self.worker is None or not self.worker.is_alive:
            # No thread in it: a fork copies the one that forks alone.
            self.worker = Worker("conformance.runner.workers:serve_calls", stderr=subprocess.DEVNULL)
        try:
            reply: Reply = self.worker.call(encode_call(fork_process, request), request.seconds + MARGIN)
            return reply
        except NoReply:
            self.close()
            return None

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


FORKING_PROCESS = ForkingProcess()
atexit.register(FORKING_PROCESS.close)


class FreshProcesses:
    """Fresh processes for one target, as long as the time for them lasts."""

    def __init__(self, target: Target | None, time_limit: float | None) -> None:
        self.target = None if target is None or target.ranks else loadable(target)  # ranks take long to start
        self.time_limit, self.left = time_limit, BUDGET

    def ask(self, steps: Sequence[Step]) -> list[list[Finding]] | None:
        """The findings of each step, in one process that takes them in order; None where that cannot be told."""
        if self.target is None or self.left <= 0 or not hasattr(os, "fork"):
            return None
        try:
            payload = pickle.dumps((self.target, self.time_limit, list(steps)))
            preload = PRELOADED.get(self.target.arrays or "", ())
            request = Request(preload, sys.path, os.getcwd(), dict(os.environ), LONGEST, payload)
        except Exception:  # what cannot be sent cannot be asked; nor is there a working folder always
            return None
        reply = FORKING_PROCESS.ask(request)
        self.left -= BUDGET if reply is None else reply.seconds
        if reply is None or not reply.in_time:
            return None
        if len(reply.findings) == len(steps):
            return reply.findings
        if reply.code == 0:  # the target was not loaded, or the judge failed
            return None
        return reply.findings + [failed_call(ProcessEnded(reply.code))] * (len(steps) - len(reply.findings))


def modules_to_preload(target: Target) -> tuple[str, ...]:
    """Return what a subject's process imports before it loads the subject: what the file's framework needs.

    Nothing where a file may set the environment first, which a framework reads when it is imported, and nothing for a
    module, whose source is not known yet.
    """
    path = Path(target.subject.rpartition(":")[0]) if isinstance(target.subject, str) else Path()
    try:
        source = path.read_text()
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return ()
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    arrays = target.arrays or next((name for name in PRELOADED if name in {n.partition(".")[0] for n in names}), "")
    return () if "environ" in source or "putenv" in source else PRELOADED.get(arrays, ())


def loadable(target: Target) -> Target | None:
    """The target by a name under which another process finds it; None where it has none."""
    subject = name_of(target.subject)
    functions = {name: value for name, value in target.given.items() if callable(value)}
    if subject is None or not all(name_of(function) for function in functions.values()):
        return None
    return replace(target, subject=subject, name=target.title)


def name_of(subject: str | Callable[..., object]) -> str | None:
    """`module:function` of a function that is found by it; an object may hold what earlier calls have left in it."""
    if isinstance(subject, str):
        return subject
    if not isinstance(subject, FunctionType) or subject.__module__ == "__main__":
        return None
    value: Any = sys.modules.get(subject.__module__)
    for part in subject.__qualname__.split("."):
        value = getattr(value, part, None)
    return f"{subject.__module__}:{subject.__qualname__}" if value is subject else None


# --- in the forking process -------------------------------------------------------------------------------------------


def serve_subject(descriptor: int, forking: int | None, preload: tuple[str, ...]) -> None:
    """Import what the subject needs, fork the process that forks, and serve the calls for the subject.

    Args:
        descriptor: of the socket for the subject. forking: of that for the process that forks; None for no such one.
        preload: what `modules_to_preload` returns.
    """
    keep_compiled_code()
    import_modules(preload)
    if forking is not None:
        # Where no process is left, `ask` starts one later.
        with contextlib.suppress(OSError):
            child = os.fork()
            if child == 0:
                try:
                    # A child of nobody here: the subject may wait for all its children.
                    if os.fork() == 0:
                        serve_forks(descriptor, forking)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        os.close(forking)
    serve(descriptor)


def serve_forks(descriptor: int, forking: int) -> None:
    """Serve the calls of `ForkingProcess`, in a session of its own; see `ForkedProcess`."""
    os.close(descriptor)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, STANDARD_INPUT)
    os.dup2(nothing, STANDARD_ERROR)
    os.write(forking, pickle.dumps(os.getpid()))
    serve_calls(forking)


def import_modules(preload: tuple[str, ...]) -> None:
    """Import what a fresh process needs to check, and what its framework needs."""
    for module in (*CHECKING, *preload):
        with contextlib.suppress(Exception):  # the subject meets it again, and is told
            importlib.import_module(module)


def fork_process(request: Request) -> Reply:
    """Fork a process for the request, and collect what it writes until it ends or has had its time."""
    import_modules(request.preload)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with contextlib.suppress(BaseException):
            take_steps(request, writer)
        os._exit(0)
    os.close(writer)
    written, own, ended = b"", OwnTime(child), True
    while True:
        ready, _, _ = select.select([reader], [], [], POLL_SECONDS)
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
    return Reply(split_findings(written), os.waitstatus_to_exitcode(status), ended, used.ru_utime + used.ru_stime)


def split_findings(written: bytes) -> list[Any]:
    """The findings of whole steps; each begins with its length."""
    findings = []
    while len(written) >= 8:
        size = int.from_bytes(written[:8], "big")
        if len(written) < 8 + size:
            break
        findings.append(pickle.loads(written[8 : 8 + size]))
        written = written[8 + size :]
    return findings


# --- in the fresh process ---------------------------------------------------------------------------------------------


def take_steps(request: Request, writer: int) -> None:
    """Load the target, take the steps in order, and write the findings of each at once."""
    sys.path[:] = request.path
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    random.seed()  # forks of one process would all draw the same
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    keep_compiled_code()
    target, time_limit, steps = pickle.loads(request.payload)
    runner = Runner(target.make(), time_limit)
    limit_memory(target)
    for step in steps:
        try:
            with judge_scope():
                findings = pickle.dumps(runner(*step))
        except (RuntimeError, JudgeError):
            return
        data = len(findings).to_bytes(8, "big") + findings
        while data:
            data = data[os.write(writer, data) :]
