"""What JAX has compiled is forgotten before it is too much for the process."""

from __future__ import annotations

import mmap
import os
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import jax_impl
from conformance import check
from conformance.runner import compiled_code

MEGABYTES = 200
SECOND, FIRST = "0::/job/step\n", "3:cpu,cpuacct:/other\n2:hugetlb,memory:/job\n1:name=systemd:/job/step\n"
"""To which groups a process belongs, as Linux tells it with cgroups in version 2 and in version 1."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is known to keep freed memory")
def test_freed_memory_is_given_back():
    """Without it a process that has once held much forgets its compiled code at every probe."""
    blocks = [bytearray(5000) for _ in range(MEGABYTES * 200)]
    last = bytearray(5000)  # above the others in the heap, which glibc shrinks by itself only from its top
    held = compiled_code.resident()
    del blocks
    compiled_code.give_back_freed_memory()
    assert compiled_code.resident() < held - 0.8 * MEGABYTES * 1e6
    assert len(last) == 5000


def test_a_process_may_hold_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A quarter for all, of what its group of processes may use where that is less than the machine has."""
    monkeypatch.setattr(compiled_code, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(compiled_code, "MOUNTED", tmp_path)
    monkeypatch.setattr(compiled_code, "LEAST", 1000.0)
    whole = compiled_code.share_of_memory(2)  # where nothing tells of groups

    def share(groups: str, **limits: str) -> float:
        (tmp_path / "cgroup").write_text(groups)
        for group, limit in limits.items():
            memory = tmp_path / ("memory" if groups == FIRST else "") / group.strip("_").replace("_", "/")
            memory.mkdir(parents=True, exist_ok=True)
            (memory / ("memory.limit_in_bytes" if groups == FIRST else "memory.max")).write_text(limit + "\n")
        return compiled_code.share_of_memory(2)

    assert share(SECOND) == whole
    assert share(SECOND, _="max") == whole  # the name of the root
    assert share(SECOND, job="80000") == 10_000
    assert share(SECOND, job_step="40000") == 5000
    assert share(SECOND, job_step="max", other="16000") == 10_000
    assert share(SECOND, _="16000") == 2000
    assert share(SECOND, _="800") == 1000  # however small the machine is
    assert share(FIRST) == whole
    assert share(FIRST, _="9223372036854771712", job="80000", step="16000") == 10_000
    assert share("unreadable\n") == whole
    (tmp_path / "cgroup").write_bytes(b"0::/\xff\n")
    assert compiled_code.share_of_memory(2) == whole
    if Path("/proc/self/statm").exists():
        assert 8 * whole > compiled_code.resident()


counted = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell its mappings")


@counted
def test_mappings_are_counted():
    before = compiled_code.mappings()
    held = [mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | write) for write in (0, mmap.PROT_WRITE) * 3]
    assert 10 < before < compiled_code.mappings()
    assert len(held) == 6


@counted
def test_a_check_forgets_what_it_has_compiled(monkeypatch: pytest.MonkeyPatch):
    """Above the limit, and not below it."""
    cleared = []
    clear = jax.clear_caches
    monkeypatch.setattr(jax, "clear_caches", lambda: (cleared.append(1), clear()))

    def times(most: int) -> int:
        monkeypatch.setattr(compiled_code, "MAPPINGS", most)
        cleared.clear()
        options: dict[str, Any] = {"arrays": "jax", "effort": "quick", "seed": 1, "profile": "strict"}
        assert check(jax_impl.sinusoidal_positions, "sinusoidal_positions", **options).conforms
        return len(cleared)

    assert times(sys.maxsize) == 0
    assert times(0) > 0


def test_tests_keep_what_they_have_compiled() -> None:
    """JAX reads where to when it is loaded: `conftest.py` has said it before."""
    assert jax.config.jax_compilation_cache_dir == os.environ["JAX_COMPILATION_CACHE_DIR"]
