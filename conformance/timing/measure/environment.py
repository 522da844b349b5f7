"""Where a result comes from: machine, system, versions, commit, and how busy the machine was."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from conformance.reports.versions import installed
from conformance.timing.measure.memory import torch_cuda
from conformance.timing.measure.other_programs import in_words, watch_processors

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "flax", "keras", "onnx", "onnxruntime", "ml_dtypes")
ROOT = Path(__file__).resolve().parents[3]


def environment(device: str, threads: int) -> dict[str, Any]:
    cuda = torch_cuda() if device == "cuda" else None
    return {
        "cpu": cpu_model(),
        "processors": os.cpu_count(),
        "threads": threads,
        "memory": memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": installed(*PACKAGES),
        "gpu": gpu() if device == "cuda" else None,
        "gpu_memory": None if cuda is None else int(cuda.get_device_properties(0).total_memory),
        "commit": commit(),
        "load": load(),
    }


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        if model := re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return model[1]
    return platform.processor() or platform.machine()


def memory() -> int | None:
    """Bytes of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def gpu() -> str | None:
    """Its name, from PyTorch or from JAX; None if neither sees one.

    JAX, asked in this process, leaves the GPU's memory to those that are timed.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if cuda := torch_cuda():
        return str(cuda.get_device_name(0))
    with contextlib.suppress(ImportError, RuntimeError):
        import jax

        return str(jax.devices("gpu")[0].device_kind)
    return None


def load() -> float | None:
    """Processes that wanted to run, on average of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def in_use(seconds: float = 0.5) -> str:
    """Return in words how busy other programs keep the machine right now; empty if they do not, or nothing tells it.

    The load of the last minute would count a run that has just ended.
    """
    taken = watch_processors()
    time.sleep(seconds)
    return in_words([taken()], "take") or ""


def crowded(load: float | None, processors: int, own: float = 0) -> str:
    """Return in words how busy other programs keep the machine; empty if half of a processor's time or more is free.

    Args:
        load: of the last minute; None where the system does not tell.
        processors: how many this process may use.
        own: how much of the load is this run's, at most.
    """
    busy = load is not None and load - own > 0.5 * processors
    return f"load {load:.1f} on {processors} processors" if busy else ""


def commit() -> str | None:
    """The checkout's, with "+" where files are changed; None without git, or outside a checkout of this project."""
    if not (ROOT / "SPEC.md").is_file():
        return None
    head = git("rev-parse", "HEAD")
    return head and head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
