"""Worker processes: each calls one function after the other for this process, and ends with it.

The subject's own process (`in_subprocess.py`), the processes that share a run (`WorkerPool`) and the one that forks
fresh processes (`fresh.py`) are all of this kind.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import traceback
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import wait
from threading import Lock, Thread
from typing import Any

from conformance.cases.declaration import Declaration
from conformance.runner.in_process import JudgeError
from conformance.runner.own_time import POLL_SECONDS, ready_in_time
from conformance.runner.process_lifetime import end_process, end_with_input, start_process

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
"""The environment of processes that share the cores: else the threads of each wait for those of the others."""


class NoReply(Exception):
    """A worker has ended, or, where `in_time` is False, its time was over."""

    def __init__(self, in_time: bool) -> None:
        super().__init__("a worker process has ended" if in_time else "a worker process took too long")
        self.in_time = in_time


class WorkerTraceback(Exception):
    """Where in a worker an exception was raised, for whoever reads its traceback here."""


def encode_call(function: Callable[..., Any], *arguments: object) -> bytes:
    """Return what `Worker.call` takes; raise what pickle does for arguments that cannot be sent."""
    return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)


class Worker:
    """A process that calls functions for this one.

    Args:
        serve: what the process runs: `serve`, `serve_calls`, or a function that ends in one of them.
        arguments, options: see `start_process`.
    """

    process: subprocess.Popen[bytes]
    kill: weakref.finalize[..., Any]

    def __init__(self, serve: str = "conformance.runner.workers:serve", *arguments: object, **options: Any) -> None:
        self.process, self.socket = start_process(serve, *arguments, **options)
        self.replies = self.socket.makefile("rb")
        self.owner = os.getpid()
        self.kill = weakref.finalize(self, end_own_process, self.process, self.owner)

    @property
    def is_alive(self) -> bool:
        """Whether it can be called, by this process."""
        return self.kill.alive and self.owner == os.getpid() and self.process.poll() is None

    def call(self, call: bytes, seconds: float | None = None) -> Any:
        """Return what the function returns, or raise what it raises.

        Args:
            call: the function and its arguments, by `encode_call`.
            seconds: own time of the process until the reply; see `own_time.py`. None for no limit.

        Raises:
            NoReply: the process has ended, or its time is over.
        """
        try:
            value, failure, where = self.exchange(call, seconds)
        except NoReply:
            raise
        except BaseException:  # an interrupt: a reply that nobody took must not be the next one's
            self.close()
            raise
        if failure is not None:
            raise failure from WorkerTraceback(where)
        return value

    def exchange(self, call: bytes, seconds: float | None) -> Any:
        """Return the reply to a call."""
        gone = False

        def ready(look: float) -> bool:
            nonlocal gone
            if gone or wait([self.socket], look):
                return True
            # A process that is gone is not waited for: one that it has started may hold the socket open.
            gone = self.process.poll() is not None
            return False

        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(call)
        except OSError as error:
            raise NoReply(not isinstance(error, TimeoutError)) from error
        if not ready_in_time(ready, self.process.pid, seconds):
            raise NoReply(gone)
        if not wait([self.socket], POLL_SECONDS):
            raise NoReply(True)
        try:
            return pickle.load(self.replies)
        except TimeoutError as end:
            raise NoReply(False) from end
        except Exception as end:  # its end, or what a function that writes to any descriptor has left there
            raise NoReply(True) from end

    def close(self) -> None:
        """End the process."""
        self.kill()
        self.replies.close()
        self.socket.close()


class ForkedProcess:
    """A process that another worker forks: this one is not its parent, so their socket alone tells whether it is there.

    Args:
        ours: this process's end of the socket. The other process writes its number first.
    """

    def __init__(self, ours: socket.socket) -> None:
        self.socket, self.pid = ours, 0

    def poll(self) -> int | None:
        """None while it is there; its exit code cannot be known."""
        try:
            gone = bool(wait([self.socket], 0)) and not self.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        return 0 if gone else None

    def end(self, owner: int) -> None:
        """End it and what it has forked, unless this process is a fork of its owner."""
        if owner == os.getpid() and self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.socket.close()


class ForkedWorker(Worker):
    """A worker that another worker forks; see `ForkedProcess`."""

    process: Any  # a `ForkedProcess`

    def __init__(self, ours: socket.socket) -> None:
        self.process, self.socket = ForkedProcess(ours), ours
        self.replies = self.socket.makefile("rb")
        self.owner = os.getpid()
        self.kill = weakref.finalize(self, self.process.end, self.owner)

    def exchange(self, call: bytes, seconds: float | None) -> Any:
        if not self.process.pid:
            try:
                self.socket.settimeout(seconds)
                self.process.pid = pickle.load(self.replies)
            except Exception as end:
                raise NoReply(True) from end
        return super().exchange(call, seconds)


def end_own_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process, unless this one is a fork of that which has started it."""
    if owner == os.getpid():
        end_process(process)


class WorkerPool:
    """Workers that share calls; each has a thread here, which waits for it.

    A worker that has ended takes no more calls; the one that it was busy with raises `NoReply`, and so do all others
    once no worker is left.

    Args:
        count: how many.
        prepare: what each calls first, by `encode_call`. What that raises, every call of the worker raises.
    """

    def __init__(self, count: int, prepare: bytes) -> None:
        self.calls: queue.SimpleQueue[tuple[Future[Any], bytes] | None] = queue.SimpleQueue()
        self.workers = [Worker(env=ONE_THREAD | os.environ) for _ in range(count)]
        self.lock, self.busy = Lock(), count
        self.threads = [Thread(target=self.pass_calls, args=(worker, prepare), daemon=True) for worker in self.workers]
        for thread in self.threads:
            thread.start()

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Return the future result of a call by the next worker that is idle; until then it can be cancelled."""
        future: Future[Any] = Future()
        call = encode_call(function, *arguments)
        with self.lock:
            if self.busy:
                self.calls.put((future, call))
            else:
                future.set_exception(NoReply(True))
        return future

    def pass_calls(self, worker: Worker, prepare: bytes) -> None:
        failure = None
        try:
            worker.call(prepare)
        except BaseException as error:
            failure = error
        while (item := self.calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if failure is not None:
                    raise failure
                future.set_result(worker.call(call))
            except BaseException as error:
                future.set_exception(error)
                if isinstance(error, NoReply):
                    break
        with self.lock:
            self.busy -= 1
            if not self.busy:
                self.refuse_calls()

    def refuse_calls(self) -> None:
        """Let all calls fail that no worker takes any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self.calls.get_nowait()
                if item is not None and item[0].set_running_or_notify_cancel():
                    item[0].set_exception(NoReply(True))

    def close(self) -> None:
        """End the processes, also in the middle of a call."""
        for worker in self.workers:
            worker.kill()
            self.calls.put(None)
        for thread in self.threads:
            thread.join()
        for worker in self.workers:
            worker.close()


# --- in the worker ----------------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Call what is sent, until the other process ends this one or is gone."""
    end_with_input()
    serve_calls(descriptor)


def serve_calls(descriptor: int) -> None:
    """As `serve`, in one thread: between two calls alone the process notices that the other one is gone."""
    own = os.getpid()
    with socket.socket(fileno=descriptor) as ours, ours.makefile("rwb") as pipe, contextlib.suppress(EOFError, OSError):
        while True:
            function, arguments = pickle.load(pipe)
            reply = encode_result(function, arguments)
            if os.getpid() != own:  # a process that the function has forked and does not end
                os._exit(0)
            pipe.write(reply)
            pipe.flush()


def encode_result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Return (what the function returns, what it raises, where), pickled.

    What is no `Exception`, such as a subject's KeyboardInterrupt, ends the process.
    """
    try:
        return pickle.dumps((function(*arguments), None, ""), pickle.HIGHEST_PROTOCOL)
    except (Exception, JudgeError) as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        try:
            content = pickle.dumps((None, error, where))
            pickle.loads(content)
        except Exception:
            content = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), where))
        return content


# --- subjects that are asked together, and the processes that ask them ------------------------------------------------


def kind(declaration: Declaration) -> str:
    """The same for all subjects for which the same cases are drawn."""
    own = declaration.compiled, declaration.ranks, declaration.shard
    return json.dumps([declaration.contents(), *own], sort_keys=True)


def group_indices(kinds: Sequence[Hashable]) -> list[list[int]]:
    """Indices of equal kinds, largest group first."""
    groups: dict[Hashable, list[int]] = {}
    for index, of in enumerate(kinds):
        groups.setdefault(of, []).append(index)
    return sorted(groups.values(), key=len, reverse=True)


def prepare_worker() -> None:
    """Prepare a process that judges in itself: compiled code is kept, and it has one of the cores."""
    from conformance.oracle.reference import balls_available
    from conformance.runner.compiled_code import keep_compiled_code
    from conformance.runner.in_process import ignore_warnings_of_numbers

    keep_compiled_code()
    ignore_warnings_of_numbers()
    balls_available()  # loaded now, because Hypothesis draws constants that it finds in loaded modules
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").set_num_threads(1)
