"""Attention on a GPU by Triton kernels, forward and backward, in O(Q + K) beside inputs and results.

What the kernels cannot do rightly goes to `blocked_attention`: values of NaN or infinity where a mask forbids anything,
since 0 times those is NaN (MASK-7), in the backward pass keys, queries and cotangents too, scores so large that they
would not be computed alike twice, and second derivatives.
"""

from __future__ import annotations

import importlib.util
import math
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
from torch_impl.engines.kernel_inputs import bounded, dense, recomputed_alike, scale_of, size
from torch_impl.engines.triton.masks import Marks, TileRanges, Tiles, marks_of, ranges_of

WIDEST = 256
"""Wider rows fit in no tile."""


def hindrance_of_triton(inputs: Inputs) -> str:
    """What keeps the kernels from a call on a GPU, or nothing."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if inputs.bias is not None or inputs.sinks is not None or inputs.softcap is not None:
        return "the Triton kernels have no bias, no softcap and no sinks"
    if inputs.query.dtype == torch.float64:
        return "the Triton kernels have no float64"
    if max(inputs.query.shape[-1], inputs.value.shape[-1]) > WIDEST:
        return f"the Triton kernels take rows of at most {WIDEST} numbers"
    if torch.version.hip or (inputs.query.is_cuda and torch.cuda.get_device_capability(inputs.query.device) < (8, 0)):
        return "the Triton kernels are for NVIDIA's GPUs from compute capability 8.0 on"
    return ""


def tiles_for(inputs: Inputs) -> Tiles:
    """They decide about speed and rounding only. None was timed: they are what the compiler found room for.

    The shared memory that they need fits in 99 KiB, the least that these GPUs have for a program.
    """
    width = max(inputs.query.shape[-1], inputs.value.shape[-1])
    if inputs.query.dtype == torch.float32:
        if width > 128:
            return Tiles(16, 16, warps=4, stages=1)
        return Tiles(32, 32, warps=4, stages=2) if width <= 64 else Tiles(32, 32, warps=8, stages=1)
    if width <= 64:
        return Tiles(64, 64, warps=8, stages=2)
    return Tiles(64, 64, warps=8, stages=1) if width <= 128 else Tiles(32, 32, warps=8, stages=1)


class Work(NamedTuple):
    """What the kernels are told beside the tensors."""

    marks: Marks
    ranges: TileRanges
    tiles: Tiles


def fused_attention(limits: Limits, inputs: Inputs) -> torch.Tensor:
    """Output [B, H, Q, V] in the dtype of query, rounded once. Nothing may have size 0."""
    if not abs(scale_of(inputs)) < torch.finfo(torch.float32).max:
        return blocked_attention(limits, inputs)
    tiles = tiles_for(inputs)
    ranges, masked = ranges_of(inputs.mask, inputs.query, inputs.key.shape[2], tiles)
    # Scores of forbidden pairs are replaced, whatever they are; but their values are multiplied by 0.
    if masked and not size(inputs.value) < math.inf:
        return blocked_attention(limits, inputs)
    work = Work(marks_of(inputs.mask, inputs.query, inputs.key.shape[2]), ranges, tiles)
    tensors = (inputs.query, inputs.key, inputs.value)
    output = TritonAttention.apply(limits, (inputs.mask, inputs.scale, None), work, *tensors)
    # No tile holds a forbidden pair, so a NaN or an infinity shows where it must; what it does there the blocks know.
    if not masked and not math.isfinite(output.detach().sum(dtype=torch.float32)):
        return blocked_attention(limits, inputs)
    return output


class TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, limits: Limits, options: Options, work: Work, *tensors: Any) -> torch.Tensor:
        from torch_impl.engines.triton.forward import forward

        query, key, value = map(dense, tensors)
        scale = scale_of(joined(options, (*tensors, None, None)))
        with torch.cuda.device_of(query):
            output, logsumexp = forward(query, key, value, work.marks, work.ranges, scale, work.tiles)
        ctx.limits, ctx.options, ctx.work = limits, options, work
        # The unrounded output: delta is a sum of its products, and has the digits of the scores' gradients.
        ctx.save_for_backward(*tensors, output, logsumexp, *arrays_of(options))
        return output.to(query.dtype)

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
        query, key, value, cotangent = map(dense, (*tensors, cotangent))
        with torch.cuda.device_of(query):
            gradients = backward(
                query, key, value, output, logsumexp, cotangent, work.marks, work.ranges, scale_of(inputs), work.tiles
            )
        return None, None, None, *(found.to(given.dtype) for found, given in zip(gradients, tensors, strict=True))
