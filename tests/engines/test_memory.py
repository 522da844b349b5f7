"""The memory that engines need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


MEASURED = """
import importlib, re, sys
import numpy as np
from conformance.runner.compiled_code import give_back_freed_memory
from specification import Causal

package, engine, length, limits = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
port, choice = importlib.import_module(package), importlib.import_module(f"{package}.engines.choice")
choice.LIMITS = type(choice.LIMITS)(*map(int, limits)) if limits else choice.LIMITS
arrays = [np.random.default_rng(n).standard_normal((1, 4, length, 64), dtype=np.float32) for n in range(4)]

def status(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def run(query, key, value, cotangent):
    if package == "torch_impl":
        given = [array.requires_grad_() for array in (query, key, value)]
        output = port.attention(*given, mask=Causal(), engine=engine)
        return torch.autograd.grad(output, given, cotangent)
    output, pullback = jax.vjp(lambda *a: port.attention(*a, mask=Causal(), engine=engine), query, key, value)
    return jax.block_until_ready(pullback(cotangent))

if package == "torch_impl":
    import torch
    arrays = [torch.from_numpy(array) for array in arrays]
else:
    import jax
    arrays = jax.block_until_ready(jax.device_put(arrays))
run(*arrays)  # XLA needs memory to compile, and keeps some of it
give_back_freed_memory()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
run(*arrays)
print(status("VmHWM") - before)
"""
LENGTH = 4096
SCORES = 4 * LENGTH**2 * 4
"""Bytes of all scores of four heads."""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read in /proc"
)


def peak(package: str, engine: str, *limits: int) -> int:
    """Bytes above the inputs that the forward and the backward pass need, in a process of its own."""
    words = (package, engine, LENGTH, *limits)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, words)], cwd=root, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("package", "engine"), [("torch_impl", "blocked"), ("torch_impl", "fused"), ("jax_impl", "auto")]
)
def test_memory_is_less_than_that_of_one_array_of_scores(package: str, engine: str) -> None:
    assert peak(package, engine) < SCORES


@needs_proc
@pytest.mark.slow
def test_the_reference_needs_several() -> None:
    """So that the bound above says something."""
    assert peak("torch_impl", "reference") > 3 * SCORES
