"""A subject that asks for more memory than it may have is told, and takes no other process with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import conformance
from conformance.checks.findings import Phase, Raised, WrongInPhase
from conformance.runner import memory_limit
from tests.support.helpers import SMALL, Finding, Target, describe_finding

KERNEL = """
import numpy as np

def attention(query, key, value):
    if key.shape[2] > 4:
        np.zeros((key.shape[2], 10**9), np.int8)
    scores = query.astype(float) @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value).astype(query.dtype)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_an_allocation_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(KERNEL)
    options = {"dtypes": "float32", "supports": "no-gqa,no-gradients", "effort": "quick", "rules": "ATT-8", "seed": 1}
    given = {"arrays": "numpy", "limits": SMALL, "memory_limit": 2} | options
    report = conformance.check(f"{kernel}:attention", "attention", **given)
    text = str(report)
    assert not report.conforms
    assert "raised MemoryError" in text
    assert "its process may take 2.0 GB; --memory-limit" in text


@pytest.mark.parametrize(
    ("error", "text", "named"),
    [
        ("MemoryError", "Unable to allocate 7.45 GiB for an array", True),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes.", True),
        ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 4000000000 bytes.", True),
        ("RuntimeError", "std::bad_alloc", True),
        ("KeyError", "'alloc_table'", False),
        ("ValueError", "no block is allocated for key 7", False),
    ],
)
def test_errors_for_lack_of_memory_name_the_limit(
    error: str, text: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "limit", 2.0)
    raised = Finding("call", float("inf"), detail=Raised(error, text))
    later = replace(raised, detail=WrongInPhase(Phase("in_a_row", 2, 6), raised))
    found = memory_limit.name_limit([raised, later])
    assert ["may take 2.0 GB" in describe_finding(one) for one in found] == [named, named]
    assert [memory_limit.exceeds_limit(one) for one in found] == [named, named]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("limits", [(8 * 10**9, 9 * 10**9), (-1, 8 * 10**9)], ids=["soft", "hard"])
def test_a_lower_limit_of_the_process_stays(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    found: list[tuple[int, int]] = []
    monkeypatch.setattr(memory_limit, "limit", 0.0)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, given: found.append(given))
    memory_limit.limit_memory(Target("reference_numpy", "attention", memory_limit=1000.0))
    assert found == [(8 * 10**9, limits[1])]
    assert 0 < memory_limit.limit < 8
