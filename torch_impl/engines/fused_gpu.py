"""Attention on a GPU by Triton kernels, forward and backward, in O(Q + K) beside inputs and results.

What the kernels cannot do rightly goes to `blocked_attention`: values of NaN or infinity where a mask forbids anything,
since 0 times those is NaN (MASK-7), in the backward pass keys, queries and cotangents too, scores so large that they
would not be computed alike twice, and second derivatives.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_impl.engines.blocked import (
    Inputs,
    Limits,
    Options,
    arrays_of,
    blocked_attention,
    blocked_gradients,
    joined,
    several,
)
from torch_impl.engines.kernel_inputs import bounded, in_units, recomputed_alike, scale_of, size
from torch_impl.engines.triton.masks import Marks, Tiles, Tilings, marks_of, ranges_of_queries

WIDEST = 256
"""Wider rows fit in no tile."""


def hindrance_of_triton(inputs: Inputs) -> str:
    """What keeps the kernels from a call on a GPU, or nothing."""
    if missing := missing_here():
        return missing
    if inputs.bias is not None or inputs.sinks is not None or inputs.softcap is not None:
        return "the Triton kernels have no bias, no softcap and no sinks"
    if inputs.query.dtype == torch.float64:
        return "the Triton kernels have no float64"
    if max(inputs.query.shape[-1], inputs.value.shape[-1]) > WIDEST:
        return f"the Triton kernels take rows of at most {WIDEST} numbers"
    if torch.version.hip or (inputs.query.is_cuda and torch.cuda.get_device_capability(inputs.query.device) < (8, 0)):
        return "the Triton kernels are for NVIDIA's GPUs from compute capability 8.0 on"
    return ""


@cache
def missing_here() -> str:
    """Which program the kernels need and this machine has not, or nothing."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, and there is none"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Triton needs the headers of Python, and they are not installed"
    return ""


JUDGED = ((9, 0),)
"""Compute capabilities on which the judge has run the kernels (H200): only there "auto" chooses them."""


def hindrance_of_choosing(inputs: Inputs) -> str:
    """Why "auto" leaves out the kernels although they take a call on a GPU, or nothing."""
    if torch.cuda.get_device_capability(inputs.query.device) in JUDGED:
        return ""
    return "the judge has not run the Triton kernels on such a GPU: request them by name"


def tilings_for(inputs: Inputs) -> Tilings:
    """The tiles of each kernel for these inputs. They change speed and rounding only.

    Where a program has at least 163 KiB of shared memory, these are the fastest of a dozen on an H100, which has 227
    KiB (Triton 3.6, causal, 2,048 or 4,096 queries and keys). Elsewhere they fit in 99 KiB, and were not timed.
    """
    width = max(inputs.query.shape[-1], inputs.value.shape[-1])
    if inputs.query.dtype == torch.float32:
        if width > 128:
            return Tilings(*[Tiles(16, 16, warps=4)] * 3)
        gradients = Tiles(32, 32, warps=4 if width <= 64 else 8)
        return Tilings(Tiles(64, 64) if width <= 64 else Tiles(32, 64), gradients, gradients)
    if not roomy(inputs.query.device):
        if width > 128:
            return Tilings(*[Tiles(32, 32, warps=8)] * 3)
        return Tilings(*[Tiles(64, 64, warps=8, stages=2 if width <= 64 else 1)] * 3)
    if inputs.query.dtype == torch.bfloat16:
        if width > 128:
            return Tilings(Tiles(64, 32, stages=2), Tiles(64, 32, stages=2), Tiles(64, 32))
        return Tilings(Tiles(64, 64, stages=3), Tiles(64, 64, stages=2), Tiles(64, 64))
    if width > 128:
        return Tilings(Tiles(64, 32), Tiles(64, 32), Tiles(32, 32, warps=8))
    wide = Tiles(128, 64, warps=8, stages=2)
    return Tilings(wide, wide, Tiles(64, 128, warps=8, stages=2))


ROOMY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Compute capabilities with at least 163 KiB of shared memory for a program (CUDA C++ Programming Guide)."""


def roomy(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in ROOMY


class Work(NamedTuple):
    """What the kernels are told beside the tensors."""

    marks: Marks
    ranges: torch.Tensor
    tilings: Tilings


def work_of(inputs: Inputs) -> tuple[Work, bool] | None:
    """The work, and whether the mask forbids any pair in it; None where blocks must compute everything."""
    if not abs(scale_of(inputs)) < torch.finfo(torch.float32).max:
        return None
    tilings = tilings_for(inputs)
    ranges, masked = ranges_of_queries(inputs.mask, inputs.query, inputs.key.shape[2], tilings.forward)
    # Scores of forbidden pairs are replaced, whatever they are; but their values are multiplied by 0.
    if masked and not size(inputs.value) < math.inf:
        return None
    return Work(marks_of(inputs.mask, inputs.query, inputs.key.shape[2]), ranges, tilings), masked


def fused_attention(limits: Limits, inputs: Inputs) -> torch.Tensor:
    """Output [B, H, Q, V] in the dtype of query, rounded once. Nothing may have size 0."""
    found = work_of(inputs)
    if found is None:
        return blocked_attention(limits, inputs)
    work, masked = found
    tensors = (inputs.query, inputs.key, inputs.value)
    output = TritonAttention.apply(limits, (inputs.mask, inputs.scale, None), work, *tensors)
    # No tile holds a forbidden pair, so a NaN or an infinity shows where it must; what it does there the blocks know.
    if not masked and not math.isfinite(output.detach().sum(dtype=torch.float32)):
        return blocked_attention(limits, inputs)
    return output


class TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, limits: Limits, options: Options, work: Work, *tensors: torch.Tensor) -> torch.Tensor:
        from torch_impl.engines.triton.forward import forward

        query, key, value = tensors
        scale = scale_of(joined(options, (*tensors, None, None)))
        with torch.cuda.device_of(query):
            output, logsumexp = forward(query, key, value, work.marks, work.ranges, scale, work.tilings.forward)
        ctx.limits, ctx.options, ctx.work = limits, options, work
        # The unrounded output: delta is a sum of its products, and has the digits of the scores' gradients.
        ctx.save_for_backward(*tensors, output, logsumexp, *arrays_of(options))
        return output[..., : value.shape[-1]].to(query.dtype, copy=True)  # no view: it may be written into

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        from torch_impl.engines.triton.backward import backward

        *tensors, output, logsumexp = ctx.saved_tensors[:5]
        inputs, work = joined(ctx.options, (*tensors, None, None)), ctx.work
        twice = torch.is_grad_enabled() or several(cotangent)
        if twice or not (bounded(cotangent, inputs.value) and recomputed_alike(inputs)):
            everything, wanted = (*tensors, None, None), (*ctx.needs_input_grad[3:], False, False)
            found = blocked_gradients(ctx.limits, ctx.options, everything, cotangent, wanted)
            return None, None, None, *found[:3]
        query, key, value = tensors
        with torch.cuda.device_of(query):
            gradients = backward(
                query, key, value, output, logsumexp, cotangent, inputs.mask, work.marks, scale_of(inputs),
                work.tilings,
            )  # fmt: skip
        return None, None, None, *(found.to(given.dtype) for found, given in zip(gradients, tensors, strict=True))


# --- some of the keys -------------------------------------------------------------------------------------------------


def forward_of_part(_: Limits, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor] | None:
    """As in `torch_impl.engines.fused`."""
    from torch_impl.engines.triton.forward import forward

    found = work_of(inputs)
    if found is None:
        return None
    work, masked = found
    query, key, value = inputs.query, inputs.key, inputs.value
    with torch.cuda.device_of(query):
        output, logsumexp = forward(query, key, value, work.marks, work.ranges, scale_of(inputs), work.tilings.forward)
    if not masked and not math.isfinite(output.sum()):
        return None
    # The kernels have +inf for a row without keys.
    return output[..., : value.shape[-1]], torch.where(logsumexp == math.inf, -math.inf, logsumexp)


def gradients_of_part(
    _: Limits, inputs: Inputs, output: torch.Tensor, logsumexp: torch.Tensor, cotangent: torch.Tensor
) -> tuple[torch.Tensor, ...] | None:
    """As in `torch_impl.engines.fused`; None where blocks must compute them."""
    from torch_impl.engines.triton.backward import backward

    found = work_of(inputs)
    if found is None:
        return None
    work = found[0]
    logsumexp = torch.where(logsumexp == -math.inf, math.inf, logsumexp).contiguous()
    with torch.cuda.device_of(output):
        return backward(
            inputs.query, inputs.key, inputs.value, in_units(output).contiguous(), logsumexp,
            cotangent.to(inputs.query.dtype), inputs.mask, work.marks, scale_of(inputs), work.tilings,
        )  # fmt: skip
