"""Norms in PyTorch with other statistics and other orders of multiplication, differentiated by torch.autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from conformance.cases.declaration import declare
from torch_impl.dtypes import widen
from torch_impl.layer_norm_steps import affine


def layer_norm_one_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> Any:
    """Sums of x and x^2 in one pass, after a number near the mean is taken off: that of the first few elements."""
    wide, axes = widen(x), axes_of(weight)
    # At most eight elements on each axis, by way of the first, so that a constant row gives its constant.
    few = wide[(..., *(slice(0, 8) for _ in axes))].detach()
    start = few[(..., *(slice(0, 1) for _ in axes))]
    shifted = wide - (start + (few - start).mean(dim=axes, keepdim=True))
    first, second = (part.mean(dim=axes, keepdim=True) for part in (shifted, shifted**2))
    variance = torch.clamp(second - first**2, min=0)
    return affine((shifted - first) / torch.sqrt(variance + eps), weight, bias).to(x.dtype)


def rms_norm_rsqrt(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """The reciprocal multiplies the weight first."""
    wide, axes = widen(x), axes_of(weight)
    reciprocal = torch.rsqrt((wide * wide).mean(dim=axes, keepdim=True) + eps)
    return (wide * (reciprocal * widen(weight))).to(x.dtype)


@declare(conventions={"normalized": "inputs"})
def rms_norm_rounded(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    """The normalised row is rounded to the inputs' dtype before the weight multiplies it, as in Llama's own code."""
    wide, axes = widen(x), axes_of(weight)
    reciprocal = torch.rsqrt((wide * wide).mean(dim=axes, keepdim=True) + eps)
    return (weight * (wide * reciprocal).to(x.dtype)).to(x.dtype)


def layer_norm_chunks(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> Any:
    """Two passes over chunks of 1024 columns; the gradients of weight and bias by hand, in blocks of 128 rows."""
    rows, width = widen(x).reshape(-1, weight.numel()), weight.numel()
    first = rows[:, :1].detach()
    deviation = rows - (first + chunked_sum(rows - first) / width)
    deviation = deviation - chunked_sum(deviation) / width
    normalized = deviation * torch.rsqrt(chunked_sum(deviation**2) / width + eps)
    flat = None if bias is None else widen(bias).reshape(-1)
    return BlockedAffine.apply(normalized, widen(weight).reshape(-1), flat).reshape(x.shape).to(x.dtype)


class BlockedAffine(torch.autograd.Function):
    """normalized * weight + bias for [rows, width], with blocked sums over rows in the gradients."""

    @staticmethod
    def forward(ctx: Any, normalized: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        ctx.save_for_backward(normalized, weight)
        ctx.biased = bias is not None
        output = normalized * weight
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, Any, Any]:
        normalized, weight = ctx.saved_tensors
        of_weight = chunked_sum((cotangent * normalized).mT, 128)[:, 0]
        of_bias = chunked_sum(cotangent.mT, 128)[:, 0] if ctx.biased else None
        return cotangent * weight, of_weight, of_bias


def chunked_sum(rows: Any, size: int = 1024) -> Any:
    """Over the last axis, in chunks whose sums are added up: [rows, 1]."""
    return pad(rows, (0, -rows.shape[-1] % size)).unflatten(-1, (-1, size)).sum(-1).sum(-1, keepdim=True)


def axes_of(weight: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(-weight.ndim, 0))
