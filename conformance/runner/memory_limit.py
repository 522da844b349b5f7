"""A limit of memory for the processes that call a subject: what asks for more is an error, and ends nothing else.

Linux counts the memory that a process can write to and shares with no other one, used or not (RLIMIT_DATA). What asks
for more gets the error of whoever allocates: MemoryError from NumPy, RuntimeError from PyTorch and JAX.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from conformance.checks.findings import Detail, Finding, Raised, Unrefused, WrongInPhase, details
from conformance.runner.compiled_code import LEAST, memory
from conformance.subjects.callables import Target

GIGABYTE = 1e9
SHARE = 0.5
"""Of the machine's memory, for the process that calls the subject. Workers beside it have equal parts of as much."""
NO_MEMORY = ("MemoryError", "allocate memory", "bad_alloc", "out of memory", "RESOURCE_EXHAUSTED")
"""In the text of errors that tell of too little memory: of NumPy, PyTorch, C++, GPUs, JAX."""

limit = 0.0
"""Gigabytes that this process may allocate beyond what it held when it was limited; 0 for no limit."""


def limit_memory(target: Target, processes: int = 1) -> None:
    """Limit what this process may allocate from now on, for a subject on the CPU; a lower limit of its own stays.

    Args:
        target: The subject, with the gigabytes of one process; None for its share of half the machine's memory.
        processes: How many have equal parts of that half.
    """
    global limit
    held = writable() if target.device == "cpu" else 0.0  # a GPU's driver takes address space as it likes
    if not held:
        return
    import resource

    gigabytes = target.memory_limit
    allowed = max(LEAST, SHARE * memory() / processes) if gigabytes is None else gigabytes * GIGABYTE
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # A process may not go beyond its hard limit, and whoever has set a soft one means it.
    most = min([int(held + allowed), *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    limit = max(most - held, 0.0) / GIGABYTE


def writable() -> float:
    """Bytes that this process can write to and shares with no other one; 0 where the system is not Linux."""
    if sys.platform != "linux":
        return 0.0
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * int(fields["VmData"].split()[0])


def name_limit(findings: list[Finding]) -> list[Finding]:
    """The findings; an error that tells of too little memory names the limit."""
    return [replace(one, detail=add_limit(one.detail)) for one in findings]


def exceeds_limit(finding: Finding) -> bool:
    """Whether the subject raised an error because its process may take no more memory."""
    return any(isinstance(detail, Raised) and detail.memory > 0 for detail in details(finding))


def add_limit(detail: Detail | None) -> Detail | None:
    if isinstance(detail, WrongInPhase | Unrefused) and isinstance(detail.found, Finding):
        return replace(detail, found=replace(detail.found, detail=add_limit(detail.found.detail)))
    if not isinstance(detail, Raised):
        return detail
    words = f"{detail.error}: {detail.text}".casefold()
    return replace(detail, memory=limit if any(word.casefold() in words for word in NO_MEMORY) else 0.0)
