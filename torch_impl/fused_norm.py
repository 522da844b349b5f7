"""Layer norm by PyTorch's own kernel for the CPU: it reads x once, forward, and x and the cotangent once, backward.

The kernel updates mean and variance with each number (Welford), which is exact in constant rows (NORM-3) and loses no
more than the condition number tells (NORM-4). Where it would break a rule it is not asked:

- 16-bit inputs (it would keep neither NORM-3 nor the gradients of NORM-6): they are widened before;
- numbers whose squares leave float32 (it makes NaN of 0 * inf), and deviations so large or small that the cube of their
  reciprocal does, which its backward pass takes: then the literal layer norm computes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_impl.blocked import several

forward_kernel = torch.native_layer_norm
backward_kernel = torch.ops.aten.native_layer_norm_backward.default

Literal = Callable[..., torch.Tensor]
"""layer_norm(x, weight, bias, eps), unrounded; given because the file that has it imports this one."""

SPREAD, MEAN = 2.0**16, 2.0**20
"""The kernel is asked where all reciprocal deviations are between 1 / SPREAD and SPREAD, and no mean exceeds MEAN."""

COTANGENT, WEIGHT = 2.0**40, 2.0**16
"""And backward where the largest cotangent of every row is 0 or between 1 / COTANGENT and COTANGENT, the largest weight
likewise.

The largest product that the kernel takes, cotangent * weight * mean * (reciprocal deviation)^3, is then 2^124, and a
gradient that is not 0 by cancellation has the size of 2^-40 2^-16 (2^-16)^2 = 2^-88: float32 has room for both.
"""


def fused_layer_norm(
    literal: Literal, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """The output in x's dtype, which is float32 or float64. x has elements."""
    with torch.autocast(x.device.type, enabled=False):
        return FusedLayerNorm.apply(literal, x, weight, bias, eps)


class FusedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, literal: Literal, x: Any, weight: Any, bias: Any, eps: float) -> torch.Tensor:
        output, mean, reciprocal = forward_kernel(x, weight.shape, weight, bias, eps)
        ctx.literal, ctx.eps = literal, eps
        ctx.kernel = between(reciprocal, SPREAD) and float(mean.abs().max()) <= MEAN
        ctx.save_for_backward(x, weight, bias, mean, reciprocal)
        if not ctx.kernel:  # of the other rows nothing changes, not a bit
            unusual = ~((reciprocal >= 1 / SPREAD) & (reciprocal <= SPREAD) & (mean.abs() <= MEAN)).flatten()
            rows = x.reshape(-1, *weight.shape)[unusual]
            output.view(-1, *weight.shape)[unusual] = literal(rows, weight, bias, eps)
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, reciprocal = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:4]
        if ctx.kernel and not (torch.is_grad_enabled() or several(cotangent)) and moderate(cotangent, weight):
            found = backward_kernel(cotangent, x, weight.shape, mean, reciprocal, weight, bias, wanted)
        else:
            found = literal_gradients(ctx.literal, (x, weight, bias), ctx.eps, cotangent, wanted)
        return None, *found, None


def between(numbers: torch.Tensor, limit: float) -> bool:
    """Whether all are between 1 / limit and limit; NaN is not."""
    smallest, largest = torch.aminmax(numbers.detach())
    return 1 / limit <= float(smallest) and float(largest) <= limit


def moderate(cotangent: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the largest cotangent of every row, and the largest weight, are 0 or of a usual size."""
    rows = torch.linalg.vector_norm(cotangent.detach(), torch.inf, dim=tuple(range(-weight.ndim, 0)))
    largest = torch.linalg.vector_norm(weight.detach(), torch.inf)
    sizes = ((rows, COTANGENT), (largest, WEIGHT))
    return all(between(torch.where(size == 0, 1, size), limit) for size, limit in sizes)


def literal_gradients(
    literal: Literal, tensors: tuple[Any, ...], eps: float, cotangent: torch.Tensor, wanted: tuple[bool, ...]
) -> list[Any]:
    """By autograd through the literal layer norm; differentiable where gradients are on."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors = tuple(t.requires_grad_().view_as(t) if want else t for t, want in zip(tensors, wanted, strict=True))
        chosen = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
        output = literal(*tensors, eps)
        gradients = iter(torch.autograd.grad(output, chosen, cotangent, create_graph=create_graph))
    return [next(gradients) if want else None for want in wanted]
