"""An examiner in a process of its own: what hangs there is ended, and what crashes there takes nothing with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from conformance.cases.declaration import Declaration
from conformance.checks.check import Check
from conformance.checks.comparison import Finding
from conformance.checks.size_limits import SizeLimits
from conformance.runner.in_process import Examiner, JudgeError, broken, judging, new_log
from conformance.runner.limits import valid_limit
from conformance.runner.process_lifetime import end_with_parent
from conformance.subjects.subject import first_line
from conformance.subjects.targets import Target

STARTING = 300.0
"""Seconds that loading the frameworks and the target may take."""
ENDING, LOOKING = 5.0, 0.2
"""Seconds for a process to end by itself, and between two looks whether it lives."""
UNGUARDED = 86
"""The exit code of a process that loads a script which starts one itself."""


class ChildExaminer(Examiner):
    """As `Examiner`, in a child process, which is started again after it has died or was ended for taking too long."""

    time_limit: float

    def __init__(self, target: Target, time_limit: float) -> None:
        self.target, self.name, self.time_limit = target, target.title, valid_limit(time_limit)
        movable(target)
        self.printed, self.overrun, self.answered = "", 0, 0
        self.process: Any = None
        self.pipe: Any = None
        self.context: Any = multiprocessing.get_context("spawn")
        self.never_given: tuple[str, ...] = ()
        self.log, self.sizes = new_log(), SizeLimits()
        self.declaration = self.start()

    def start(self) -> Declaration:
        """ValueError where the target cannot be loaded, as in `Target.make`."""
        self.pipe, other = self.context.Pipe()
        self.process = self.context.Process(target=serve, args=(other, self.target, self.time_limit), daemon=True)
        started(self.process)
        other.close()
        loaded, in_time = self.received(STARTING)
        if not in_time:
            loaded = f"not loaded after {STARTING:g} s"
        elif loaded is None:
            loaded = f"while it was loaded {self.end()}"
            if self.process.exitcode == UNGUARDED:
                loaded = "its process loads this script again, which starts another: "
                loaded += 'put what the script does under `if __name__ == "__main__":`'
        if isinstance(loaded, tuple):
            declaration, self.never_given = loaded
            return declaration
        self.close()
        raise ValueError(loaded)

    def examined(self, check: Check[Any, Any], material: Any, shared: Any) -> list[Finding]:
        if self.process is None:
            try:
                self.start()
            except ValueError as error:
                raise JudgeError(f"the function could not be loaded again: {error}") from error
        try:
            question = ForkingPickler.dumps((check, material, shared))
        except Exception as error:
            raise JudgeError(f"the judge failed: {type(error).__name__}: {first_line(error)}") from error
        # The child ends what Python can end itself; a little later only ending the child is left.
        answer, in_time = self.received(self.time_limit + ENDING, question)
        if not in_time:
            self.overrun += 1
            self.close()
            return broken(f"took longer than {self.time_limit:g} s, and its process was ended")
        if answer is None:
            message = self.end()
            self.close()
            return broken(message)
        if isinstance(answer, JudgeError):
            if not self.answered:
                raise answer
            self.close()  # something in that process is spoilt, as a GPU is after a bad access: once more in a new one
            return self.examined(check, material, shared)
        findings, printed, overrun = answer
        self.printed, self.overrun = self.printed or printed, self.overrun + overrun
        self.answered += 1
        return findings

    def received(self, seconds: float, question: Any = b"") -> tuple[Any, bool]:
        """(what it answers to the question, None if nothing; whether it has answered or ended in time).

        Nothing is waited for any longer: not for a process that is gone, since what it has started may hold the pipe
        open; nor for one that does not read the whole question, or writes half an answer.
        """
        answer, end = None, time.monotonic() + seconds
        timer = threading.Timer(seconds, shut, [self.pipe])
        timer.start()
        try:
            # What fails is the end of the pipe, or what a function that writes to any file has left in it.
            with contextlib.suppress(Exception):
                if question:
                    self.pipe.send_bytes(question)
                while not self.pipe.poll(LOOKING) and self.process.is_alive():
                    pass
                answer = self.pipe.recv() if self.pipe.poll() else None
        finally:
            timer.cancel()
            timer.join()
        return answer, answer is not None or time.monotonic() < end or not self.process.is_alive()

    def end(self) -> str:
        """What became of a process that answers no more."""
        end = time.monotonic() + ENDING
        while self.process.is_alive() and time.monotonic() < end:
            time.sleep(LOOKING)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            return "its process lost its connection to the judge, and was ended"
        return died(self.process.exitcode)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process, self.answered = None, 0


def shut(pipe: Connection) -> None:
    """Whoever waits for the pipe goes on, at either end."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def movable(target: Target) -> None:
    """ValueError where a process of its own cannot be given the target."""
    what = "name it as package.module:callable or path/to/file.py:callable, or define it at the top level of a module"
    try:
        ForkingPickler.dumps(target)
    except Exception as error:
        raise ValueError(f"{target.title} cannot be sent to a process of its own ({error}): {what}") from error
    main = sys.modules["__main__"]
    for function in (target.subject, target.given.get("vjp")):
        if getattr(function, "__module__", None) == "__main__" and not hasattr(main, "__file__"):
            raise ValueError(f"{target.title} is not in a file that a process of its own could load: {what}")


def started(process: Any) -> None:
    """Ends this process where it is a child itself, and still loading the script that it was started from."""
    try:
        process.start()
    except RuntimeError as error:
        if "bootstrapping" not in str(error):
            raise
        os._exit(UNGUARDED)


def apart(*arguments: Any, **keywords: Any) -> None:
    """Stands for a function for gradients that is in the child."""


def died(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process died of signal {-code}"


def serve(pipe: Connection, target: Target, time_limit: float) -> None:
    """The child: what is asked is examined, until nobody asks any more."""
    from conformance.runner.compiled_code import keep_compiled_code

    end_with_parent()
    keep_compiled_code()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends this process
    with open(os.devnull, "w") as nowhere:  # what native code prints is for nobody
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    try:
        examiner = Examiner(target.make(), time_limit)
    except Exception as error:
        pipe.send(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}")
        return
    own = os.getpid()
    declaration = replace(examiner.declaration, vjp=None if examiner.declaration.vjp is None else apart)
    pipe.send((declaration, examiner.never_given))
    with contextlib.suppress(EOFError):
        while True:
            asked = pipe.recv()
            answered = answer(examiner, *asked)
            if os.getpid() != own:  # a process that the function has forked and does not end
                os._exit(0)
            pipe.send(answered)
            examiner.overrun = 0


def answer(examiner: Examiner, *asked: Any) -> Any:
    """(findings, what was printed, checks that took too long), or what went wrong in the judge."""
    try:
        with judging():
            return examiner(*asked), examiner.printed, examiner.overrun
    except RuntimeError as error:
        return JudgeError(str(error))
