"""Layer norm by PyTorch's own kernel for the CPU: it reads x once, forward, and x and the cotangent once, backward.

The kernel updates mean and variance with each number (Welford), which is exact in constant rows (NORM-3) and loses no
more than the condition number tells (NORM-4). Where it would break a rule it is not asked:

- 16-bit inputs (it would keep neither NORM-3 nor the gradients of NORM-6): they are widened before;
- numbers whose squares leave float32 (it makes NaN of 0 * inf), and deviations so large or small that the cube of their
  reciprocal does, which its backward pass takes;
- rows whose mean is much larger than their deviation (it takes x / deviation - mean / deviation, the difference of two
  large numbers, so that their rounding is what is left of a constant row far from 0).

Then `reference_layer_norm` computes these rows, and all of them in the backward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torch_impl.engines.blocked import gradients_through, several
from torch_impl.layer_norm_steps import reference_layer_norm

forward_kernel = torch.native_layer_norm
backward_kernel = torch.ops.aten.native_layer_norm_backward.default

SPREAD, DISTANCE = 2.0**16, 2.0**4
"""The kernel is asked where all reciprocal deviations are between 1 / SPREAD and SPREAD, and no mean is farther from 0
than DISTANCE deviations, by which its rounding is multiplied."""

COTANGENT = 2.0**40
"""And backward where every row of the cotangent is 0 or has a Euclidean norm between 1 / COTANGENT and COTANGENT,"""
WEIGHT, LEAST = 2.0**16, 2.0**-24
"""and the weight is 0, or has a norm of at most WEIGHT and no number below LEAST.

The largest product that the kernel takes, cotangent * weight * mean * (reciprocal deviation)^3, is then 2^92. A row of
cotangent * weight has a norm of at least 2^-40 2^-24, so a gradient that is not 0 by cancellation has the size of 2^-64
(2^-16)^2 = 2^-96, less by the root of N that is between a norm and its largest number, which is 2^-104 for a row of
2^16: float32 has room for both. Without the limits downwards the kernel's cotangent * weight * x underflows, and what
is lost grows with the cubed reciprocal deviation. A lower limit to the weight's norm would not do: the largest
cotangents may stand beside the smallest weights.
"""


def fused_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """The output in x's dtype, which is float32 or float64. x has elements."""
    with torch.autocast(x.device.type, enabled=False):
        return FusedLayerNorm.apply(x, weight, bias, eps)


class FusedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        output, mean, reciprocal = forward_kernel(x, weight.shape, weight, bias, eps)
        ctx.eps = eps
        distance = mean * reciprocal
        ctx.kernel = within(reciprocal, 1 / SPREAD, SPREAD) and within(distance, -DISTANCE, DISTANCE)
        ctx.save_for_backward(x, weight, bias, mean, reciprocal)
        if not ctx.kernel:  # of the other rows nothing changes, not a bit
            unusual = ~(between(reciprocal, SPREAD) & (distance.abs() <= DISTANCE)).flatten()
            rows = x.reshape(-1, *weight.shape)[unusual]
            output.view(-1, *weight.shape)[unusual] = reference_layer_norm(rows, weight, bias, eps)
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, reciprocal = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if ctx.kernel and not (torch.is_grad_enabled() or several(cotangent)) and moderate(cotangent, weight):
            found = backward_kernel(cotangent, x, weight.shape, mean, reciprocal, weight, bias, wanted)
        else:
            function, given = partial(reference_layer_norm, eps=ctx.eps), (x, weight, bias)
            found = gradients_through(function, given, cotangent, wanted)
        return *found, None


def between(numbers: torch.Tensor, limit: float) -> torch.Tensor:
    """Which of them are between 1 / limit and limit; NaN is not."""
    return (numbers >= 1 / limit) & (numbers <= limit)


def within(numbers: torch.Tensor, low: float, high: float) -> bool:
    """Whether all of them are between low and high, in one reading; NaN, which is then both extremes, is not."""
    least, most = torch.aminmax(numbers.detach())
    return bool(low <= least) and bool(most <= high)


def moderate(cotangent: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether every row of the cotangent, and the weight, are 0 or of a usual size.

    Of PyTorch's norms the Euclidean is by far the quickest. Its squares may leave the dtype: infinity is not usual, and
    what seems to be 0 is looked at again.
    """
    cotangent, weight = cotangent.detach(), weight.detach()
    if bool(weight.any()) and not (torch.linalg.vector_norm(weight) <= WEIGHT and weight.abs().min() >= LEAST):
        return False
    norms = torch.linalg.vector_norm(cotangent, 2, dim=tuple(range(-weight.ndim, 0)))
    silent = norms == 0
    return bool((silent | between(norms, COTANGENT)).all()) and not bool(cotangent[silent].any())
