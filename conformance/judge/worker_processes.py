"""Processes that take a share of a check's probes: JAX compiles for every shape, and one core is not enough.

The checking process goes through the probes from the first one on, the workers from the last one back. Whoever creates
a probe's claim file runs that probe. A worker leaves what it found in another file, and the checking process collects
these files in the order of the probes, so the result is the one that a single process gives. Only the checking process
looks for smaller failing cases.

A worker calls the function in its own process. It dies where the function crashes, and ends itself where a call does
not heed its time limit. What a worker claimed and did not finish, the checking process runs itself, through its own
subprocess: a crash or a hang is thus seen where a single process would see it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conformance.cases.declaration import Declaration
from conformance.checks.results import Results
from conformance.runner.compiled_code import LEAST, memory
from conformance.runner.process_lifetime import POSIX, end_process, start_process
from conformance.subjects.targets import Target

LOOKING = 0.02
"""Seconds between two looks for a file."""


class Start(NamedTuple):
    """What a worker loads. processes: how many share the memory."""

    target: Target
    time_limit: float
    processes: int


class Order(NamedTuple):
    """Which probes a worker runs: those of `Judgement.later_probes`."""

    operation: str
    declaration: Declaration
    examples: int
    seed: int
    rules: Collection[str] | None


class Outcome(NamedTuple):
    """What a worker found with one probe. overrun: cases that took too long. printed: on standard output."""

    tried: Results
    overrun: int
    printed: str


ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A worker has one core; the threads of PyTorch and NumPy would wait for one another on those of other processes."""


class WorkerProcesses:
    """The processes, seen from the checking one."""

    def __init__(self, start: Start) -> None:
        """TypeError, AttributeError or pickle.PicklingError where the target cannot be sent to another process."""
        content = pickle.dumps(start)
        self.folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self.path, self.orders = Path(self.folder.name), 0
        content += pickle.dumps(self.path)
        self.told = (self.path / "progress").open("a+", encoding="utf-8")
        self.processes = {
            process.pid: process for process in (start_worker(content) for _ in range(start.processes - 1))
        }

    def order(self, order: Order) -> None:
        """Drop what was ordered before."""
        self.orders += 1
        folder(self.path, self.orders).mkdir()
        with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
            write(order_file(self.path, self.orders), pickle.dumps(order))

    def outcome(self, index: int, waiting: Callable[[], None]) -> Outcome | None:
        """What a worker found with the probe of that index; None where the checking process is to run it.

        waiting: called now and then until the worker has finished.
        """
        owner = claim_probe(folder(self.path, self.orders), index)
        if owner is None:
            return None
        process = self.processes.get(owner)
        while process is not None and process.poll() is None and not self.has_finished(index):
            waiting()
            time.sleep(LOOKING)
        return self.read_outcome(index)

    def has_finished(self, index: int) -> bool:
        return result_file(folder(self.path, self.orders), index).exists()

    def read_outcome(self, index: int) -> Outcome | None:
        """What is there by now."""
        if not self.has_finished(index):
            return None
        found: Outcome = pickle.loads(result_file(folder(self.path, self.orders), index).read_bytes())
        return found

    def news(self) -> Iterator[tuple[str, str]]:
        """Rule and title for every case that workers have run since the last look."""
        for line in self.told:
            rule, _, title = line.rstrip("\n").partition("\t")
            yield rule, title

    def close(self) -> None:
        for process in self.processes.values():
            end_process(process)
        self.told.close()
        self.folder.cleanup()


def start_workers(target: Target, time_limit: float, processes: int) -> WorkerProcesses | None:
    """None where there is no room for a second process, or where it could not load the target again."""
    room = int(memory() / 4 / LEAST)
    processes = min(processes, room)
    if processes < 2 or not POSIX or not isinstance(target.subject, str):
        return None
    with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
        return WorkerProcesses(Start(target, time_limit, processes))
    return None


def start_worker(content: bytes) -> subprocess.Popen[bytes]:
    """Start a worker, which is sent a `Start` and the folder, pickled."""
    process, ours = start_process("conformance.judge.worker_main:main", env=os.environ | ONE_THREAD)
    with ours, contextlib.suppress(OSError):  # one that has ended already is noticed as any other
        ours.sendall(content)
    return process


# --- the files --------------------------------------------------------------------------------------------------------


def folder(path: Path, order: int) -> Path:
    return path / f"{order}"


def order_file(path: Path, order: int) -> Path:
    return path / f"{order}.order"


def result_file(of_order: Path, index: int) -> Path:
    return of_order / f"{index}.result"


def claim_probe(of_order: Path, index: int) -> int | None:
    """None if this process has the probe from now on; else the identifier of the process that has it."""
    file = of_order / f"{index}.claim"
    own = of_order / f"{os.getpid()}.process"
    if not own.exists():
        own.write_text(str(os.getpid()))
    try:
        os.link(own, file)  # a claim appears with its content, or not at all
    except FileExistsError:
        return int(file.read_text())
    return None


def write(file: Path, content: bytes) -> None:
    """The file appears with all its content."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)


def wait_for_file(file: Path) -> Any:
    """What is in the file once it is there."""
    while not file.exists():
        time.sleep(LOOKING)
    return pickle.loads(file.read_bytes())
