"""A runner in a subprocess: what hangs there is killed, and what crashes there takes nothing with it."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Check, Example, Shared
from conformance.checks.findings import Finding, ProcessEnded, TookTooLong
from conformance.runner.array_guess import make_subject
from conformance.runner.compiled_code import keep_compiled_code
from conformance.runner.fresh import FORKING_PROCESS
from conformance.runner.in_process import (
    JudgeError,
    Runner,
    SizeLimits,
    failed_call,
    ignore_warnings_of_numbers,
    judge_scope,
    new_log,
)
from conformance.runner.memory_limit import limit_memory
from conformance.runner.own_time import measure_crowding, valid_limit
from conformance.runner.process_lifetime import POSIX, describe_end
from conformance.runner.workers import NoReply, Worker, encode_call
from conformance.subjects.callables import Target
from conformance.subjects.subject import Answers, Subject, first_line
from conformance.subjects.wrong_answers import relative_path

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
    runner.target = replace(target, source=find_source(target, subject))
    return runner


def find_source(target: Target, subject: Subject) -> str:
    """The file of the subject's code, if it is not the one that the target names; empty where none can be told."""
    code = getattr(inspect.unwrap(subject.code) if callable(subject.code) else None, "__code__", None)
    where = Path(target.subject.rpartition(":")[0]) if isinstance(target.subject, str) else Path()
    files = where, Path(code.co_filename if code is not None else "")
    if where.suffix != ".py" or not all(file.is_file() for file in files):  # as after a change of the folder
        return ""
    return "" if where.samefile(files[1]) else relative_path(str(files[1]))


class SubprocessRunner(Runner):
    """As `Runner`, in a subprocess, which is started again after it has died or was killed for taking too long."""

    time_limit: float
    target: Target

    def __init__(self, target: Target, time_limit: float) -> None:
        self.target, self.name, self.time_limit = target, target.title, valid_limit(time_limit)
        self.printed, self.overrun, self.answered = "", 0, 0
        self.answers: Answers | None = None
        self.worker: Worker | None = None
        self.never_given: tuple[str, ...] = ()
        self.log, self.sizes = new_log(), SizeLimits()
        self.declaration = self.start()

    def start(self) -> Declaration:
        """ValueError where the target cannot be loaded, as in `Target.make`."""
        if loading:
            raise ValueError(UNGUARDED)
        request = encode_call(load_subject, encode_target(self.target, self.time_limit))
        self.worker = FORKING_PROCESS.start_subject(self.target, env=KEEP_MEMORY | os.environ)
        try:
            declaration, self.never_given, arrays = self.worker.call(request, STARTING)
        except ValueError:
            self.close()
            raise
        except NoReply as end:
            lost = f"while it was loaded {describe_end(self.exit_code())}"
            self.close()
            if self.target.arrays is None:  # perhaps by the trial call
                self.target = replace(self.target, arrays="numpy", guessed=UNTRIED)
                return self.start()
            raise ValueError(lost if end.in_time else f"not loaded after {STARTING:g} s") from end
        self.target = replace(self.target, **arrays)
        return declaration

    def run_check(self, check: Check[Example, Shared], example: Example, shared: Shared) -> list[Finding]:
        if self.worker is None:
            try:
                self.start()
            except ValueError as error:
                raise JudgeError(f"the function could not be loaded again: {error}") from error
        assert self.worker is not None
        self.answers = None
        try:
            request = encode_call(check_subject, check, example, shared)
        except Exception as error:
            raise JudgeError(f"the judge failed: {type(error).__name__}: {first_line(error)}") from error
        try:
            # The process ends what Python can end itself; a little later only ending the process is left.
            findings, printed, overrun, self.answers = self.worker.call(request, self.time_limit + ENDING)
        except NoReply as end:
            self.overrun += not end.in_time
            late = TookTooLong(self.time_limit, ended=True, crowding=measure_crowding())
            detail = ProcessEnded(self.exit_code()) if end.in_time else late
            self.close()
            return failed_call(detail)
        except RuntimeError as error:
            if not self.answered:
                raise JudgeError(str(error)) from error
            self.close()  # something in that process is spoilt, as a GPU is after a bad access: once more in a new one
            return self.run_check(check, example, shared)
        self.printed, self.overrun = self.printed or printed, self.overrun + overrun
        self.answered += 1
        return findings

    def exit_code(self) -> int | None:
        """Of a process that answers no more; None where it does not end by itself."""
        try:
            return self.worker.process.wait(ENDING) if self.worker is not None else None
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker, self.answered = None, 0


def encode_target(target: Target, time_limit: float) -> bytes:
    """What `load_subject` takes; ValueError where another process cannot be given the target."""
    what = "name it as package.module:callable or path/to/file.py:callable, or define it at the top level of a module"
    if any(getattr(f, "__module__", "") == "__main__" for f in (target.subject, target.given.get("vjp"))):
        raise ValueError(f"{target.title} is in the script that runs, which a process of its own does not load: {what}")
    try:
        return pickle.dumps((target, time_limit))
    except Exception as error:
        raise ValueError(f"{target.title} cannot be sent to a process of its own ({error}): {what}") from error


def remote_vjp(*arguments: object, **keywords: object) -> None:
    """Stands for a function for gradients that is in the subprocess."""


# --- in the subprocess ------------------------------------------------------------------------------------------------


subjects: list[Runner] = []
"""The one that this process has loaded."""


def load_subject(encoded_target: bytes) -> tuple[Declaration, tuple[str, ...], dict[str, Any]]:
    """Load the target; return its declaration, parameters that are never given, and the arrays that it takes."""
    global loading
    keep_compiled_code()
    ignore_warnings_of_numbers()
    loading = True
    try:
        target, time_limit = pickle.loads(encoded_target)
        runner = runner_here(target, time_limit)
        limit_memory(target)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from None
    finally:
        loading = False
    runner.interrupts_are_users = False
    subjects[:] = [runner]
    declaration, target = runner.declaration, runner.target or target
    arrays = {"arrays": target.arrays, "guessed": target.guessed, "source": target.source}
    return replace(declaration, vjp=declaration.vjp and remote_vjp), runner.never_given, arrays


def check_subject(
    check: Check[Example, Shared], example: Example, shared: Shared
) -> tuple[list[Finding], str, int, Answers | None]:
    """Return findings, what was printed, how many checks took too long, and the answers to be kept.

    Raises:
        RuntimeError: something went wrong in the judge.
    """
    (runner,) = subjects
    runner.overrun = 0
    with judge_scope():
        return runner(check, example, shared), runner.printed, runner.overrun, runner.answers
