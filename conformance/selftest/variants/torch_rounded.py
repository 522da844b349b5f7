"""Attention in PyTorch as blocked kernels compute it, forwards and backwards by hand, with their roundings.

Without any it is one more way to compute attention. With roundings it conforms only if they are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from conformance.selftest.variants.torch_pieces import (
    Problem,
    Rounding,
    attention_by,
    cap_scores,
    divide_rows,
    round_to,
    round_to_tf32,
    row_maximum,
    sink_exponential,
    skip_rounding,
)

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""left [..., Q, D] @ right [..., D, K]."""


def sum_backwards(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right, one term added after the other from the last to the first."""
    total = left.new_zeros((*left.shape[:-1], right.shape[-1]))
    for i in reversed(range(left.shape[-1])):
        total += left[..., i, None] * right[..., i, None, :]
    return total


class Roundings(NamedTuple):
    """weights: of attention weights and of the gradients of scores. sides: of both sides of every matrix product.

    on_query: the scale is put on the query, before it is rounded; else on the product.
    returned: the backward pass takes the output as it was returned, in the inputs' dtype. product: of two matrices.
    """

    weights: Rounding = skip_rounding
    sides: Rounding = skip_rounding
    on_query: bool = True
    returned: bool = False
    product: Product = torch.matmul

    def pairs(self, left: torch.Tensor, right: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        """left . right for the allowed pairs, with both sides rounded, and 0 for the others."""
        return torch.where(allowed, self.product(self.sides(left), self.sides(right).mT), 0)

    def sum_values(self, weights: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        """weights @ values, both rounded, in which hidden NaN and infinity have no part, and allowed ones give NaN."""
        finite = torch.isfinite(values)
        output = self.product(self.sides(weights), self.sides(torch.where(finite, values, 0)))
        reached = allowed.to(values.dtype) @ (~finite).to(values.dtype) > 0
        return torch.where(reached, torch.nan, output)


class Kernel(torch.autograd.Function):
    """(query, key, value, bias, sinks) -> output, all in the dtype of the arithmetic."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        *arrays, allowed, scale, softcap, dtype, roundings = inputs
        query, key, value, bias, sinks = arrays
        p = Problem(query, key, value, allowed, bias, sinks, scale, softcap)
        scores = cap_scores(products(p, roundings), p)
        maximum = row_maximum(scores, p)
        exponentials = torch.exp(scores - maximum)
        total = exponentials.sum(dim=-1, keepdim=True) + sink_exponential(p, maximum)
        output = divide_rows(roundings.sum_values(roundings.weights(exponentials), value, allowed), total, p)
        returned = output.to(dtype)
        ctx.p, ctx.roundings = p, roundings
        ctx.save_for_backward(returned if roundings.returned else output, maximum, total)
        return returned

    @staticmethod
    def backward(ctx: Any, output_bar: Any) -> Any:
        (output, maximum, total), p, roundings = ctx.saved_tensors, ctx.p, ctx.roundings
        output_bar, output = output_bar.to(p.query.dtype), output.to(p.query.dtype)
        return (*gradients(p, output, maximum, total, output_bar, roundings), *[None] * 5)


def products(p: Problem, roundings: Roundings) -> torch.Tensor:
    """scale * query . key."""
    if roundings.on_query:
        return roundings.pairs(p.query * p.scale, p.key, p.allowed)
    return roundings.pairs(p.query, p.key, p.allowed) * p.scale


def gradients(
    p: Problem, output: Any, maximum: Any, total: Any, output_bar: Any, roundings: Roundings
) -> tuple[torch.Tensor | None, ...]:
    """Weights once more from maximum and total, and the mean as rowsum(O_bar * O)."""
    sum_values, weights, turned = roundings.sum_values, roundings.weights, p.allowed.mT
    scaled = products(p, roundings)
    scores = cap_scores(scaled, p)
    logarithm = torch.log(torch.where(total == 0, 1, total))
    held = torch.where(p.allowed, torch.exp(scores - maximum - logarithm), 0)
    mean = (output_bar * output).sum(dim=-1, keepdim=True)
    weights_bar = roundings.pairs(output_bar, p.value, p.allowed)
    scores_bar = torch.where(p.allowed, held * (weights_bar - mean), 0)
    raw = scores_bar if p.softcap is None else scores_bar * (1 - torch.tanh(scaled / p.softcap) ** 2)
    raw = weights(raw)
    value_bar = sum_values(weights(held).mT, output_bar, turned)
    query_bar = sum_values(raw, p.key, p.allowed) * p.scale
    if roundings.on_query:
        key_bar = sum_values(raw.mT, p.query * p.scale, turned)
    else:
        key_bar = sum_values(raw.mT, p.query, turned) * p.scale
    bias_bar = sinks_bar = None
    if p.bias is not None:
        shared = [axis for axis in (0, 1) if p.bias.shape[axis] == 1]
        bias_bar = scores_bar.sum(dim=shared, keepdim=True) if shared else scores_bar
    if p.sinks is not None:
        sink = torch.where(p.sinks == -torch.inf, 0, p.sinks)[:, None, None]
        weight = torch.where(p.sinks[:, None, None] == -torch.inf, 0, torch.exp(sink - maximum - logarithm))
        sinks_bar = -(weight * mean).sum(dim=(0, 2, 3))
    return query_bar, key_bar, value_bar, bias_bar, sinks_bar


def kernel(name: str, roundings_for: Callable[[torch.dtype], Roundings], **declared: Any) -> Callable[..., Any]:
    """Attention with the roundings that it has for inputs of a dtype."""

    def compute(p: Problem) -> torch.Tensor:
        arrays = p.query, p.key, p.value, p.bias, p.sinks
        return Kernel.apply(*arrays, p.allowed, p.scale, p.softcap, p.dtype, roundings_for(p.dtype))

    return attention_by(compute, name, **declared)


UP_TO_FLOAT32 = ("float16", "bfloat16", "float32")
BFLOAT16_WEIGHTS: Mapping[str, str] = {"weights": "bfloat16"}
TF32_PRODUCTS: Mapping[str, str] = {"products": "tf32"}
OF_INPUTS: Mapping[str, str] = {"weights": "inputs", "products": "inputs"}

flash = kernel("flash", lambda dtype: Roundings())
summed_backwards = kernel("summed_backwards", lambda dtype: Roundings(product=sum_backwards))
bfloat16_weights = kernel(
    "bfloat16_weights",
    lambda dtype: Roundings(weights=round_to(torch.bfloat16), returned=True),
    dtypes=UP_TO_FLOAT32,
    conventions=BFLOAT16_WEIGHTS,
)
tf32_products = kernel(
    "tf32_products", lambda dtype: Roundings(sides=round_to_tf32), dtypes=UP_TO_FLOAT32, conventions=TF32_PRODUCTS
)
products_of_inputs = kernel(  # what tensor cores do: everything that is multiplied is rounded to the inputs' dtype
    "products_of_inputs",
    lambda dtype: Roundings(round_to(dtype), round_to(dtype), on_query=False, returned=True),
    dtypes=("float16", "bfloat16"),
    conventions=OF_INPUTS,
)
