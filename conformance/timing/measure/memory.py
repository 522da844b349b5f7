"""Memory: what one call needs beyond its inputs, what a case will need, and what is there."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from conformance.timing import timed_case as timed
from conformance.timing.subjects.timed_subject import NO_ARENAS, Subject
from conformance.timing.timed_case import MEMORY, Case

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SPARE = 0.8
"""The share of the free memory that a case may need; the estimate leaves out what a framework keeps for itself."""
KEPT_BY_JAX = 2**30
"""Bytes of a case on a GPU from which on a process with JAX ends after it: JAX gives no memory back."""


class NotMeasured(Exception):
    """This system does not say it."""


def give_memory_back() -> None:
    """From here on the C library returns memory that is freed, so that none of it is hidden from the next call."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 65536)
        library.mallopt(M_TRIM_THRESHOLD, 0)
        library.malloc_trim(0)


def read_bytes(path: Path, field: str) -> int:
    """The bytes that one of the system's tables says in kilobytes, such as "VmRSS:  1024 kB"."""
    line = re.search(rf"^{field}:\s*(\d+)", path.read_text(), re.MULTILINE)
    if line is None:
        raise OSError(None, f"has no {field}", str(path))
    return int(line[1]) * 1024


def extra_peak(call: Callable[[], Any]) -> int:
    """The bytes that the process had at most while the call ran, above what it had before."""
    gc.collect()
    give_memory_back()
    try:
        CLEAR.write_text(RESET_PEAK)
        before = read_bytes(STATUS, "VmRSS")
    except OSError as error:
        raise NotMeasured(f"{error.filename}: {error.strerror}") from error
    result = call()
    peak = read_bytes(STATUS, "VmHWM")  # since it was reset
    del result
    return max(0, peak - before)


class MemoryWorker:
    """A subject in a process that does nothing but this: the call once, to be warm, and more often to be measured."""

    def __init__(self, subject: Subject, device: str) -> None:
        self.subject, self.device = subject, device

    def measure(self, case: Case, seed: int, calls: int) -> list[int]:
        """Bytes above the inputs, results included, of each of the calls."""
        give_memory_back()
        os.environ[NO_ARENAS] = "1"
        prepared = self.subject.ready(case, self.device)

        def loaded(number: int) -> Any:
            words = (MEMORY, number)
            return prepared.load(timed.inputs(case, seed, *words), timed.mask(case, seed, *words))

        def call() -> Any:
            return prepared.finish(inputs)

        inputs = loaded(0)
        with prepared.around():
            call()
            found = []
            for number in range(1, 1 + calls):
                inputs = None  # or both would count where a peak cannot be reset
                inputs = loaded(number)
                found.append(on_gpu(self.subject.arrays, call) if self.device == "cuda" else extra_peak(call))
            return found


def on_gpu(arrays: str, call: Callable[[], Any]) -> int:
    """As the framework's own allocator counts it. JAX's peak cannot be reset, and is that of the first call too."""
    if arrays == "torch":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        del result
        return int(torch.cuda.max_memory_allocated() - before)
    import jax

    device = jax.devices("gpu")[0]
    statistics: Any = device.memory_stats()
    before = statistics["bytes_in_use"]
    call()
    statistics = device.memory_stats()
    return int(statistics["peak_bytes_in_use"] - before)


# --- before a case ----------------------------------------------------------------------------------------------------


def available(device: str) -> int | None:
    """Bytes that are free; None where the system does not say."""
    with contextlib.suppress(OSError, RuntimeError):
        if device != "cuda":
            return read_bytes(Path("/proc/meminfo"), "MemAvailable")
        if cuda := torch_cuda():
            return int(cuda.mem_get_info()[0])
    return None


def torch_cuda() -> Any:
    """Return `torch.cuda`; None where PyTorch sees no GPU, which JAX may all the same."""
    with contextlib.suppress(ImportError):
        import torch

        return torch.cuda if torch.cuda.is_available() else None
    return None


def needed(subject: Subject, case: Case) -> int:
    """Bytes for one call: inputs and results (twice, being drawn in NumPy), dense masks, and the scores it keeps."""
    arrays = sum(int(np.prod(shape)) for shape in case.shapes.values())
    results = arrays if case.backward else arrays // len(case.inputs)
    pairs = case.B * case.H * case.Q * case.K if case.facts.by_head else 0
    scores = (subject.scores or (0, 0))[case.backward] * pairs * 4
    dense = case.kind in ("window", "segments", "causal") and not subject.ours
    masks = 4 * case.Q * case.K if dense and case.facts.by_head else 0
    return int(2 * (arrays + results) * case.itemsize + scores + masks)


def hindrance(subject: Subject, case: Case, free: int | None) -> str:
    """Why memory does not suffice, in a line; empty if it does."""
    bytes_needed = needed(subject, case)
    if free is None or bytes_needed <= SPARE * free:
        return ""
    allowed = f"{gigabytes(SPARE * free)} are allowed, {SPARE:.0%} of the {gigabytes(free)} that are free"
    return f"one call needs about {gigabytes(bytes_needed)}; {allowed} (SPARE in conformance/timing/measure/memory.py)"


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
