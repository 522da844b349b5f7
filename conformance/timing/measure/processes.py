"""Processes: every subject has one of its own, so that it disturbs no other, and takes nothing but itself down.

They are forked from a server that has the frameworks imported, and nothing running. Idle ones sleep: only one process
works at a time, on the same number of threads. `conformance.runner.workers` would import a framework in every process,
and looks at a busy process several times a second, on the processors that are timed.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from conformance.runner.process_lifetime import end_with_parent
from conformance.subjects.subject import first_line
from conformance.subjects.wrong_answers import find_raising_line

LIBRARIES = ("OMP", "MKL", "OPENBLAS", "VECLIB", "NUMEXPR")
FRAMEWORKS = ("numpy", "torch", "jax", "onnxruntime", "onnx")
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""For glibc: memory that is freed stays with the process, but for arrays above 32 MiB, its limit for that.

Left to itself glibc gives it back and takes it again in some processes and not in others, by how memory came to lie.
PyTorch's layer norm of 12 MB took 1.6 ms in one process and 3.5 in another, half of it for new pages.
"""


class Failed(Exception):
    """What was asked of a process did not come back; says why in a line. `unfit`: it is not for that case."""

    def __init__(self, reason: str, unfit: bool = False) -> None:
        super().__init__(reason)
        self.unfit = unfit


@functools.cache
def empty_folder() -> str:
    """For what Triton compiles in this run; removed at its end."""
    folder = tempfile.mkdtemp(prefix="conformance-triton-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment(threads: int) -> dict[str, str]:
    """What the processes are started with: threads, nothing compiled that is kept from another run, memory kept."""
    return {f"{library}_NUM_THREADS": str(threads) for library in LIBRARIES} | {
        "NPROC": str(threads),  # XLA's threads
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_ENABLE_X64": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # so that other processes find room on the GPU
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_CACHE_DIR": empty_folder(),
        "PYTHONWARNINGS": "ignore",
        **KEPT,
    }


def processors() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def context() -> Any:
    """The way to start processes, with all frameworks that are installed imported once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    there = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    found.set_forkserver_preload([*there, "conformance.timing.measure.timing_worker"])
    return found


def settle(threads: int, variables: Mapping[str, str]) -> None:
    """In a process that was just started: its variables, processors, and precision."""
    gc.freeze()  # so that collections have little to look at
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that started this one
    os.environ.update(variables)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors()[:threads])
    if "torch" in sys.modules:
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


def serve(pipe: Any, threads: int, variables: Mapping[str, str], make: Callable[..., Any], arguments: Any) -> None:
    """Make an object, and answer with what its methods return until the pipe is closed."""
    from conformance.timing.subjects.timed_subject import Unfit, Wrong

    end_with_parent()
    settle(threads, variables)
    server: Any = None
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:
            return
        try:
            server = make(*arguments) if server is None else server
            answer = ("answer", getattr(server, method)(*given))
        except (Unfit, Wrong) as error:
            answer = ("unfit" if isinstance(error, Unfit) else "failed", first_line(error))
        except MemoryError:
            answer = ("failed", "there was not enough memory")
        except Exception as error:
            place = f" ({line})" if (line := find_raising_line(error, None)) else ""
            answer = ("failed", f"raised {type(error).__name__}: {first_line(error)}{place}")
        pipe.send(answer)


@dataclass
class Worker:
    """An object in a process of its own, that is started when first needed, and anew after it has ended."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    threads: int
    variables: Mapping[str, str]
    process: Any = None

    def start(self) -> None:
        started = context()
        self.pipe, theirs = started.Pipe()
        variables = environment(self.threads) | dict(self.variables)
        given = (theirs, self.threads, variables, self.make, self.arguments)
        process = started.Process(target=serve, args=given, daemon=True)
        try:
            with patch.dict(os.environ, environment(self.threads)):  # that of the server, which the first one starts
                process.start()
        except (OSError, pickle.PicklingError, AttributeError, TypeError) as error:
            self.pipe.close()
            what = "it cannot be pickled, to go into a process of its own"
            what = "no process could be started for it" if isinstance(error, OSError) else what
            raise Failed(f"{what}: {first_line(error)}") from error
        finally:
            theirs.close()
        self.process = process

    def ask(self, method: str, *given: Any, limit: float) -> Any:
        """What the method returns; Failed if it raises, takes longer than `limit` seconds, or ends the process."""
        if self.process is None:
            self.start()
        try:
            self.pipe.send((method, given))
            if not self.pipe.poll(limit):
                self.end()
                raise Failed(f"took longer than {limit:.0f} s")
            kind, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            self.end()
            killed = " (killed: there may not have been enough memory)" if code == -signal.SIGKILL else ""
            raise Failed(f"its process ended with code {code}{killed}") from None
        if kind != "answer":
            raise Failed(answer, unfit=kind == "unfit")
        return answer

    def end(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.kill()
            self.process.join(5)
            self.process = None
