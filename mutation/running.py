"""Trying mutants: each in a process of its own, which may crash, hang or fill the memory."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mutation.mutants import Mutant

Trial = Callable[[Mutant, Path], str]
"""Says what kills a mutant, or "" if nothing does; may write into the folder."""

MEMORY = 8 * 2**30
"""Bytes of address space for one mutant."""


class Running(NamedTuple):
    mutant: Mutant
    process: Any
    answer: Any
    folder: tempfile.TemporaryDirectory[str]
    end: float


def tried(mutants: Sequence[Mutant], trial: Trial, processes: int, seconds: float) -> Iterator[tuple[Mutant, str]]:
    """Every mutant and what kills it, as they end; a mutant that takes longer is killed by that."""
    waiting, running = list(reversed(mutants)), list[Running]()
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(started(waiting.pop(), trial, seconds))
        patience = max(0.0, min(one.end for one in running) - time.monotonic())
        multiprocessing.connection.wait([one.process.sentinel for one in running], patience)
        for one in list(running):
            over = time.monotonic() > one.end
            if over or not one.process.is_alive():
                running.remove(one)
                yield one.mutant, ended(one, over)


def started(mutant: Mutant, trial: Trial, seconds: float) -> Running:
    context = multiprocessing.get_context("fork")  # the child has all that was prepared
    folder = tempfile.TemporaryDirectory(prefix="mutant-")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=answering, args=(sending, mutant, trial, Path(folder.name)))
    process.start()
    sending.close()
    return Running(mutant, process, receiving, folder, time.monotonic() + seconds)


def answering(sending: Any, mutant: Mutant, trial: Trial, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        sending.send(trial(mutant, folder))
    except OSError as error:  # no room for its files, say: none of the mutant's doing, unlike memory
        if error.errno == errno.ENOMEM:
            raise
        sending.send(error)


def ended(one: Running, over: bool) -> str:
    answer = "crashes"
    if over:
        one.process.kill()
        answer = "does not end"
    one.process.join()
    if not over and one.answer.poll():
        with contextlib.suppress(EOFError):
            answer = one.answer.recv()
            if isinstance(answer, OSError):
                raise answer
    one.answer.close()
    one.folder.cleanup()
    return answer
