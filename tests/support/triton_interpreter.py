"""The Triton kernels in Triton's interpreter, on tensors of the CPU and in tiles of a few rows, and their cases."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cases.case import Case
from conformance.cases.declaration import Sizes
from conformance.cases.expectations import Exact
from conformance.checks.catalogue import truth_and_bounds
from conformance.checks.comparison import Finding
from conformance.peers.engines import GPU_KERNEL_DTYPES, Engine
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from tests.support.engine_cases import RNG, drawn, error, module_of

ROOT = Path(__file__).parents[2]
KERNELS = ("layout", "tiles", "forward", "backward")
"""The files that have kernels, each after those that it imports."""

TRITON = Engine("torch_impl", "fused", ("no-bias", "no-softcap", "no-sinks"))


def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")


@contextlib.contextmanager
def interpreted(
    tiles: tuple[int, int] = (8, 16), edits: Mapping[str, tuple[str, str]] | None = None, folder: Path | None = None
) -> Iterator[None]:
    """For as long as the block lasts, `engine="fused"` on the CPU is the Triton kernels, in the interpreter.

    edits: in a file of kernels the first text, which must occur once, becomes the second; the copy goes to `folder`.
    """
    needs_triton()
    attention, choice, gpu = (module_of(TRITON, name) for name in ("attention", "engines.choice", "engines.fused_gpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # read where a kernel is defined
        triton = importlib.import_module("triton")
        if isinstance(triton.language.sum, triton.JITFunction):
            pytest.skip("Triton compiles in this process already: set TRITON_INTERPRET=1 before it starts")
        patch.setattr(importlib.import_module("triton.runtime.interpreter").InterpretedFunction, "__call__", called)
        for name in KERNELS:
            load(name, (edits or {}).get(name), folder, patch)
        masks = module_of(TRITON, "engines.triton.masks")
        patch.setattr(gpu, "tilings_for", lambda inputs: masks.Tilings(*[masks.Tiles(*tiles)] * 3))
        patch.setattr(choice, "hindrance_of_the_kernel", gpu.hindrance_of_triton)
        patch.setattr(attention, "fused_attention", gpu.fused_attention)
        yield


PREPARED: set[str] = set()


def called(function: Any, *arguments: Any, **options: Any) -> Any:
    """What the interpreter does with a function that a kernel calls, with its preparations made once.

    It would put its own functions in the place of all of Triton's language for every call, for most of the time that
    it takes. For the kernel itself it has done so already, where the kernel's own files look; Triton's look elsewhere.
    """
    file = function.fn.__module__
    if file.startswith("triton.") and file not in PREPARED:
        importlib.import_module("triton.runtime.interpreter")._patch_lang(function.fn)
        PREPARED.add(file)
    return function.rewrite()(*arguments, **options)


def load(name: str, edit: tuple[str, str] | None, folder: Path | None, patch: pytest.MonkeyPatch) -> None:
    """A file of kernels read anew, so that what it defines is interpreted."""
    file = ROOT / "torch_impl" / "engines" / "triton" / f"{name}.py"
    if edit is not None and folder is not None:
        source = file.read_text()
        assert source.count(edit[0]) == 1, f"{edit[0]!r} occurs {source.count(edit[0])} times in {name}"
        file = folder / file.name  # a file, since the interpreter reads the source of a kernel from there
        file.write_text(source.replace(*edit))
    specification = importlib.util.spec_from_file_location(f"torch_impl.engines.triton.{name}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    patch.setitem(sys.modules, specification.name, module)
    specification.loader.exec_module(module)


# --- cases ------------------------------------------------------------------------------------------------------------

LARGE = Sizes(2, 2, 1, 37, 70, 20, 12)
"""Several tiles of 16 by 16, with tails, and widths that are no multiples of 16: the kernels read copies."""
IN_PLACE = Sizes(2, 2, 1, 37, 70, 48, 16)
"""The same with widths as the kernels read them; 48 is no power of two, so they read 64 columns and hide 16."""
PACKED = np.repeat([[0, 1, 2, 3]], 2, axis=0)
OF_QUERIES, OF_KEYS = np.repeat(PACKED, [3, 20, 10, 4], axis=1), np.repeat(PACKED, [20, 34, 10, 6], axis=1)

LARGE_MASKS: dict[str, Any] = {
    "none": None,
    "causal": Causal(33),
    "causal, per batch": Causal(np.array([33, -9])),
    "window": SlidingWindow(20, 3, 33),
    "window, per batch": SlidingWindow(38, 0, np.array([33, 12])),
    "lengths": KeyLengths(np.array([70, 41])),
    "lengths and causal": KeyLengths(np.array([0, 50])) & Causal(33),
    "segments": Segments(OF_QUERIES, OF_KEYS),
    "causal in segments": Segments(OF_QUERIES, OF_KEYS) & Causal(30),
    "segments of segments": Segments(OF_QUERIES, OF_KEYS) & Segments(OF_QUERIES // 2, OF_KEYS // 2 + OF_KEYS // 3),
    "padding and window": KeyPadding(RNG.random((2, 70)) < 0.8) & SlidingWindow(30, 5, 20),
    "padding twice": KeyPadding(RNG.random((2, 70)) < 0.8) & KeyPadding(RNG.random((2, 70)) < 0.8),
    "dense and causal": Dense(RNG.random((37, 70)) < 0.6) & Causal(33),
    "dense, per head": Dense(RNG.random((1, 2, 37, 70)) < 0.6),
    "window or lengths": SlidingWindow(5, 5, 20) | KeyLengths(np.array([3, 64])),
}
LARGE_CASES = {
    f"{name}, {dtype}": drawn(mask, dtype, LARGE)
    for name, mask in LARGE_MASKS.items()
    for dtype in GPU_KERNEL_DTYPES
    if dtype == "float32" or name in ("none", "causal", "lengths and causal", "causal in segments", "dense, per head")
}
LARGE_CASES |= {
    f"causal in place, {dtype}": drawn(LARGE_MASKS["causal"], dtype, IN_PLACE) for dtype in GPU_KERNEL_DTYPES
}
SMALL_CASES = [
    "causal, empty rows", "window, one side", "dense, with a hole", "segments, with a hole", "all", "float16",
    "upper left, negative scale", "no scale at all", "one query", "one key", "more heads than rows", "wider values",
]  # fmt: skip
"""What the large ones have not; every operation of the interpreter takes a millisecond."""


@cache
def large_truth(name: str) -> tuple[dict[str, Exact], dict[str, np.ndarray]]:
    return truth_and_bounds(LARGE_CASES[name])


def large(name: str) -> Finding:
    """The worst error of the kernels, which must be interpreted at the time, in a large case."""
    case: Case = LARGE_CASES[name]
    return error(TRITON, case, large_truth(name))
