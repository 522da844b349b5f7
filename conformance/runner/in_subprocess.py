"""A runner in a subprocess: what hangs there is killed, and what crashes there takes nothing with it."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import weakref
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from conformance.cases.declaration import Declaration
from conformance.checks.check import Check
from conformance.checks.findings import Finding, ProcessEnded, TookTooLong
from conformance.checks.size_limits import SizeLimits
from conformance.runner.array_guess import make_subject
from conformance.runner.compiled_code import keep_compiled_code
from conformance.runner.in_process import JudgeError, Runner, failed_call, ignore_warnings_of_numbers, judging, new_log
from conformance.runner.limits import valid_limit
from conformance.runner.own_time import LOOKING, ready_in_time
from conformance.runner.process_lifetime import POSIX, describe_end, end_process, end_with_input, start_process
from conformance.subjects.subject import first_line
from conformance.subjects.targets import Target

STARTING = 300.0
"""Seconds that loading the frameworks and the target may take."""
ENDING = 5.0
"""Seconds for a process to end by itself."""
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Settings of the GNU C library. Else it gives the memory of large arrays back after every check, and asks again."""

UNTRIED = "nothing tells which it takes, and a trial call ended its process"

loading = False
"""Whether this process is a subprocess that loads its function."""
UNGUARDED = 'the file that is judged calls the judge while it is loaded: put that under `if __name__ == "__main__":`'


def runner_for(target: Target, time_limit: float, isolate: bool | None) -> Runner:
    """Return a runner of the target, in a subprocess or here.

    Args:
        target: the subject to make.
        time_limit: seconds for one check.
        isolate: whether in a subprocess. None: if a string names the function, no function object gives its gradients,
            and the system is a POSIX one.

    Returns:
        A `SubprocessRunner` or a `Runner`. Its `target` has the arrays that were guessed if the argument has none.

    Raises:
        ValueError: the target cannot be loaded, or cannot be sent to a subprocess.
    """
    if isolate is None:
        isolate = POSIX and isinstance(target.subject, str) and not callable(target.given.get("vjp"))
    return SubprocessRunner(target, time_limit) if isolate else runner_here(target, time_limit)


def runner_here(target: Target, time_limit: float) -> Runner:
    target, subject = make_subject(target, time_limit)
    runner = Runner(subject, time_limit)
    runner.target = target
    return runner


class SubprocessRunner(Runner):
    """As `Runner`, in a subprocess, which is started again after it has died or was killed for taking too long."""

    time_limit: float
    target: Target

    def __init__(self, target: Target, time_limit: float) -> None:
        self.target, self.name, self.time_limit = target, target.title, valid_limit(time_limit)
        self.printed, self.overrun, self.answered = "", 0, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.never_given: tuple[str, ...] = ()
        self.log, self.sizes = new_log(), SizeLimits()
        self.declaration = self.start()

    def start(self) -> Declaration:
        """ValueError where the target cannot be loaded, as in `Target.make`."""
        if loading:
            raise ValueError(UNGUARDED)
        start = sendable(self.target, self.time_limit)
        self.process, self.socket = start_process(
            "conformance.runner.in_subprocess:serve", env=KEEP_MEMORY | os.environ
        )
        self.answers = self.socket.makefile("rb")
        self.kill = weakref.finalize(self, end_process, self.process)
        answered, in_time = self.receive_answer(STARTING, start)
        loaded = answered
        if isinstance(loaded, tuple):
            declaration, self.never_given, arrays = loaded
            self.target = replace(self.target, **arrays)
            return declaration
        if loaded is None:
            loaded = (
                f"while it was loaded {describe_end(self.exit_code())}"
                if in_time
                else f"not loaded after {STARTING:g} s"
            )
        self.close()
        if answered is None and self.target.arrays is None:  # perhaps by the trial call
            self.target = replace(self.target, arrays="numpy", guessed=UNTRIED)
            return self.start()
        raise ValueError(loaded)

    def run_check(self, check: Check[Any, Any], example: Any, shared: Any) -> list[Finding]:
        if self.process is None:
            try:
                self.start()
            except ValueError as error:
                raise JudgeError(f"the function could not be loaded again: {error}") from error
        try:
            question = pickle.dumps((check, example, shared), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise JudgeError(f"the judge failed: {type(error).__name__}: {first_line(error)}") from error
        # The child ends what Python can end itself; a little later only ending the child is left.
        answer, in_time = self.receive_answer(self.time_limit + ENDING, question)
        if answer is None:
            self.overrun += not in_time
            detail = ProcessEnded(self.exit_code()) if in_time else TookTooLong(self.time_limit, ended=True)
            self.close()
            return failed_call(detail)
        if isinstance(answer, JudgeError):
            if not self.answered:
                raise answer
            self.close()  # something in that process is spoilt, as a GPU is after a bad access: once more in a new one
            return self.run_check(check, example, shared)
        findings, printed, overrun = answer
        self.printed, self.overrun = self.printed or printed, self.overrun + overrun
        self.answered += 1
        return findings

    def receive_answer(self, seconds: float, question: bytes) -> tuple[Any, bool]:
        """(what the process answers, None if it ends or answers nothing that can be read; whether it was in time).

        A process that is gone is not waited for: one that it has started may hold the socket open.
        """
        process, gone = self.process, False
        if process is None:
            return None, True

        def ready(look: float) -> bool:
            nonlocal gone
            if gone or wait([self.socket], look):
                return True
            gone = process.poll() is not None
            return False

        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(question)
            if not ready_in_time(ready, process.pid, seconds):
                return None, gone
            if not wait([self.socket], LOOKING):
                return None, True
            return pickle.load(self.answers), True
        except TimeoutError:
            return None, False
        except Exception:  # the end of the socket, or what a function that writes to any descriptor has left in it
            return None, True

    def exit_code(self) -> int | None:
        """Of a process that answers no more; None where it does not end by itself."""
        try:
            return self.process.wait(ENDING) if self.process is not None else None
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self.process is not None:
            self.kill()
            self.answers.close()
            self.socket.close()
            self.process, self.answered = None, 0


def sendable(target: Target, time_limit: float) -> bytes:
    """What a subprocess is sent to start with; ValueError where it cannot be given the target."""
    what = "name it as package.module:callable or path/to/file.py:callable, or define it at the top level of a module"
    if any(getattr(f, "__module__", "") == "__main__" for f in (target.subject, target.given.get("vjp"))):
        raise ValueError(f"{target.title} is in the script that runs, which a process of its own does not load: {what}")
    try:
        return pickle.dumps((target, time_limit))
    except Exception as error:
        raise ValueError(f"{target.title} cannot be sent to a process of its own ({error}): {what}") from error


def remote_vjp(*arguments: Any, **keywords: Any) -> None:
    """Stands for a function for gradients that is in the child."""


def serve(descriptor: int) -> None:
    """The child: load the target, and run the checks until the judge ends this process."""
    end_with_input()
    keep_compiled_code()
    ignore_warnings_of_numbers()
    with socket.socket(fileno=descriptor) as ours, ours.makefile("rwb") as pipe:
        runner = load_runner(pipe)
        own = os.getpid()
        with contextlib.suppress(EOFError):
            while runner is not None:
                answered = answer(runner, *pickle.load(pipe))
                if os.getpid() != own:  # a process that the function has forked and does not end
                    os._exit(0)
                send(pipe, answered)
                runner.overrun = 0


def load_runner(pipe: Any) -> Runner | None:
    """The runner of the target that is sent; None where that cannot be loaded, which the judge is told."""
    global loading
    loading = True
    try:
        target, time_limit = pickle.load(pipe)
        runner = runner_here(target, time_limit)
    except Exception as error:
        send(pipe, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}")
        return None
    finally:
        loading = False
    declaration, target = runner.declaration, runner.target or target
    arrays = {"arrays": target.arrays, "guessed": target.guessed}
    send(pipe, (replace(declaration, vjp=declaration.vjp and remote_vjp), runner.never_given, arrays))
    return runner


def send(pipe: Any, content: Any) -> None:
    pipe.write(pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
    pipe.flush()


def answer(runner: Runner, *asked: Any) -> Any:
    """(findings, what was printed, checks that took too long), or what went wrong in the judge."""
    try:
        with judging():
            return runner(*asked), runner.printed, runner.overrun
    except RuntimeError as error:
        return JudgeError(str(error))
