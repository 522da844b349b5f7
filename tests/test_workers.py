"""The memory of the processes that a run is spread over."""

from __future__ import annotations

import platform

import pytest

from conformance.workers import give_back_freed_memory, resident

MEGABYTES = 200


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is known to keep freed memory")
def test_freed_memory_is_given_back():
    """Without it a process that has once held much forgets its compiled code at every probe."""
    blocks = [bytearray(5000) for _ in range(MEGABYTES * 200)]
    last = bytearray(5000)  # above the others in the heap, which glibc shrinks by itself only from its top
    held = resident()
    del blocks
    give_back_freed_memory()
    assert resident() < held - 0.8 * MEGABYTES * 1e6
    assert len(last) == 5000
