"""What kernels are given: whether its numbers stay within what a kernel can hold, and its strides."""

from __future__ import annotations

import math

import torch

from torch_impl.engines.blocked import Inputs, wide


def size(tensor: torch.Tensor) -> float:
    """The root of the sum of all squares; infinity or NaN if one of the numbers is, or some are very large."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=dtype))


def bounded(first: torch.Tensor, second: torch.Tensor, factor: float = 1.0) -> bool:
    """Whether no product of a row of each, times the factor, leaves float32: |a . b| is at most |a| |b|.

    Nor does the difference of two such products, as the backward pass takes it.
    """
    return size(first) * size(second) * factor < torch.finfo(torch.float32).max / 4


def scores_bounded(inputs: Inputs) -> bool:
    return bounded(inputs.query, inputs.key, max(1.0, abs(scale_of(inputs))))


def recomputed_alike(inputs: Inputs) -> bool:
    """Whether scores that are computed again differ by little in comparison with 1, so that weights have no other size.

    The kernel's backward pass takes exp(score - logsumexp), and rounds these scores otherwise than the forward pass
    did: each is off by at most (D + 4) u |query| |key| |scale|.
    """
    unit = torch.finfo(wide(inputs)).eps / 2
    rows = (torch.linalg.vector_norm(t.detach(), dim=-1, dtype=wide(inputs)) for t in (inputs.query, inputs.key))
    query, key = (float(lengths.max()) for lengths in rows)
    return query * key * abs(scale_of(inputs)) * (inputs.query.shape[-1] + 4) * unit < 1 / 16


def scale_of(inputs: Inputs) -> float:
    return 1 / math.sqrt(inputs.query.shape[-1]) if inputs.scale is None else float(inputs.scale)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel reads the last axis as if its elements stood side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


UNIT = 16
"""The Triton kernels read tensors whose widths, strides and addresses are multiples of it; the last in bytes."""


def in_units(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the Triton kernels read it; if it is laid out otherwise, a copy, with zeros at the end of its rows.

    An axis of one element may have any stride.
    """
    *lengths, width = tensor.shape
    strides = [stride for length, stride in zip(lengths, tensor.stride()[:-1], strict=True) if length > 1]
    if tensor.stride(-1) == 1 and not any(number % UNIT for number in (width, tensor.data_ptr(), *strides)):
        return tensor
    copy = tensor.new_zeros((*lengths, -(-width // UNIT) * UNIT))
    copy[..., :width] = tensor
    return copy
