"""What JAX has compiled in this process, a megabyte and several mappings of memory for each of thousands of shapes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import sys
import warnings
from pathlib import Path

MAPPINGS = 30_000
"""Mappings of memory that a process may have. Linux allows 65,530 unless told otherwise; at the next one LLVM ends the
process. With JAX 0.10.2 each new shape of `jax_impl`'s blocked engine, forward and backward, takes about 300."""

GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where Linux says to which groups of processes this one belongs, and what these groups may use."""

LEAST = 1e9
"""Bytes that a process may hold however small the machine is: the frameworks and a few hundred shapes."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "transformer-conformance"


def keep_compiled_code() -> None:
    """JAX compiles for every new shape; the next run finds it all compiled. Set before JAX is imported.

    JAX writes its files in place, so a process may read one that another is still writing: it says so and compiles.
    """
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache() / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def share_of_memory(processes: int) -> float:
    """Bytes that each of so many processes may hold, of a quarter of this system's memory.

    A run of `jax_impl` in one process comes to hold 4 GB (JAX 0.10.2).
    """
    return max(LEAST, memory() / 4 / processes)


def forget_compiled_code(room: float = math.inf) -> None:
    """Once the process holds more than `room` bytes, or too many mappings.

    What is asked for again is compiled again, or comes from JAX's cache of files where there is one.
    """
    if "jax" in sys.modules and (resident() > room or mappings() > MAPPINGS):
        sys.modules["jax"].clear_caches()
        gc.collect()
        give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Freed memory that the C library keeps would still count as resident, and code be forgotten at every probe."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc has it
    if trim is not None:
        trim(0)


def memory() -> float:
    """Bytes of memory that this system has, or that this process may use of it; 0 where that cannot be found out."""
    allowed = []
    for limit in limits():
        with contextlib.suppress(OSError, ValueError):  # "max", where there is none
            allowed.append(int(limit.read_text()))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        allowed.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float(min(allowed, default=0))


def limits() -> list[Path]:
    """Files with the limits of this process's group and of those around it, as cgroups in version 2 and 1 have them.

    In a container the names are sometimes those outside, and such files are missing; its own limit is then at the root.
    """
    try:
        lines = [line.split(":", 2) for line in GROUPS.read_text().splitlines()]
    except (OSError, ValueError):  # ValueError: a name that is no text
        return []
    files = []
    for controllers, name in (line[1:] for line in lines if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, file = (MOUNTED / "memory", "memory.limit_in_bytes") if controllers else (MOUNTED, "memory.max")
        group = Path(name.lstrip("/"))
        files += [root / each / file for each in (group, *group.parents)]
    return files


def resident() -> float:
    """Bytes of memory that this process holds now; 0 where the system does not say it as Linux does."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def mappings() -> int:
    """Mappings of memory that this process has; 0 where the system does not say it as Linux does."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
