"""A subject that asks for more memory than it may have is told, and takes no other process with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import conformance
from tests.support.helpers import SMALL

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
