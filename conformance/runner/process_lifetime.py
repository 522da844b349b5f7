"""Processes that this one starts. Each ends with it, also where this one is killed and cannot say so."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from typing import Any

POSIX = os.name == "posix"
"""Whether this system has sessions, and processes inherit sockets, as `start_process` needs."""
STANDARD_INPUT, STANDARD_ERROR = 0, 2


def start_process(serve: str, *arguments: object, **options: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that calls a function with the descriptor of its end of a socket.

    `multiprocessing` would load the script again that calls the judge. The process has a session of its own: an
    interrupt is for this process alone.

    Args:
        serve: the function, "package.module:function". It calls `end_with_input` first, or ends with the socket.
        arguments: what the function gets beside the descriptor: plain values.
        options: for `subprocess.Popen`.

    Returns:
        The process and this process's end of the socket.
    """
    module, _, function = serve.partition(":")
    path, warned = [str(folder) for folder in sys.path], [f"-W{option}" for option in sys.warnoptions]
    ours, theirs = socket.socketpair()
    code = (
        f"import sys; sys.path[:] = {path}; from {module} import {function}; {function}{(theirs.fileno(), *arguments)}"
    )
    given: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.DEVNULL,
        "start_new_session": True,
    } | options
    given["pass_fds"] = [theirs.fileno(), *given.get("pass_fds", ())]
    with theirs:
        process = subprocess.Popen([sys.executable, *warned, "-c", code], **given)
    return process, ours


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, and what it has started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def describe_end(code: int | None) -> str:
    """How a process ended, in words. code: its exit code, or minus its signal; None where it had to be ended."""
    if code is None:
        return "its process lost its connection to the judge, and was ended"
    if code >= 0:
        return f"its process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process died of signal {-code}"


def end_with_input() -> None:
    """End this process with the one that has started it by `start_process`, and holds its standard input open."""
    threading.Thread(target=end_after, args=(STANDARD_INPUT,), daemon=True).start()


def end_with_parent() -> None:
    """To be called first in a process started by `multiprocessing`; elsewhere it does nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=end_after, args=(parent.sentinel,), daemon=True).start()


def end_after(sentinel: int) -> None:
    """Without the usual ending, which would wait for what is being computed."""
    wait([sentinel])
    os._exit(1)
