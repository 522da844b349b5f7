"""`python -m tests.support.triton_compiling 90`: the Triton kernels compiled for a compute capability, without a GPU.

Prints as JSON, for each dtype and kernel, the shared memory in bytes and which dtypes the tensor cores multiply.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from specification import Causal, Dense, KeyPadding, Segments
from torch_impl.engines import fused_gpu
from torch_impl.engines.blocked import Inputs
from torch_impl.engines.triton import backward, forward, masks

B, H, G, Q, K, D = 2, 4, 2, 100, 150, 32


class Driver:
    """What the compiler asks a GPU's driver."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def compiled(dtype: torch.dtype, width: int = D) -> dict[str, dict[str, Any]]:
    """Every kernel as it would be launched for such inputs; nothing is computed."""
    found: dict[str, dict[str, Any]] = {}
    run = JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, **options: Any) -> None:
        made = run(kernel, *arguments, **{**options, "warmup": True})
        pairs = re.findall(r"mma\S*\.f32\.(\w+)\.(\w+)", made.asm["ptx"])
        found[kernel.__name__] = {
            "shared": made.metadata.shared,
            "products": sorted({f"{left} {right}" for left, right in pairs}),
        }

    JITFunction.run = compile_only
    try:
        launch(dtype, width)
    finally:
        JITFunction.run = run
    return found


def launch(dtype: torch.dtype, width: int) -> None:
    query, key = torch.zeros(B, H, Q, width, dtype=dtype), torch.zeros(B, G, K, width, dtype=dtype)
    ids = torch.zeros(B, Q, dtype=torch.int64), torch.zeros(B, K, dtype=torch.int64)
    keep = KeyPadding(torch.ones(B, K, dtype=torch.bool))
    mask = Causal(50) & keep & Segments(*ids) & Dense(torch.ones(Q, K, dtype=torch.bool))
    tilings = fused_gpu.tilings_for(Inputs(query, key, key, mask, None, None, None, None))
    ranges, _ = masks.ranges_of_queries(mask, query, K, tilings.forward)
    marks = masks.marks_of(mask, query, K)
    output, logsumexp = forward.forward(query, key, key, marks, ranges, 0.1, tilings.forward)
    backward.backward(query, key, key, output, logsumexp, query, mask, marks, 0.1, tilings)


if __name__ == "__main__":
    driver.set_active(Driver(int(sys.argv[1])))
    names = sys.argv[2:] or ["float32", "float16", "bfloat16"]
    print(json.dumps({name: compiled(getattr(torch, name)) for name in names}))
