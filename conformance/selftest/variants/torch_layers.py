"""Multi-head attention, embedding and feed-forward network in PyTorch, in other ways than the definition's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch.nn import functional

from conformance.cases.declaration import declare
from conformance.selftest.variants.torch_pieces import Rounding, round_to_tf32, skip_rounding
from conformance.selftest.variants.torch_rounded import TF32_PRODUCTS, UP_TO_FLOAT32, flash, tf32_products
from torch_impl.dtypes import widen
from torch_impl.multi_head_attention import concatenate_heads, join_heads, split_heads

if TYPE_CHECKING:
    from conformance.cases.declaration import DeclarationOptions
    from specification.masks import Mask
    from specification.parameters import FeedForward, GatedFeedForward, Linear, MultiHeadAttention


def multi_head_by(
    attention: Callable[..., Any], sides: Rounding, name: str, **declared: Unpack[DeclarationOptions]
) -> Callable[..., Any]:
    """Around a given attention, with both sides of the projections' products rounded."""

    @declare(**declared)
    def multi_head_attention(
        parameters: MultiHeadAttention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        num_heads: int,
        mask: Mask | torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        joined = [join_heads(part) for part in parameters[:3]]
        groups = joined[1].weight.shape[1] // (joined[0].weight.shape[1] // num_heads)
        projected = (project(part, x, sides) for part, x in zip(joined, (query, key, value), strict=True))
        heads = map(split_heads, projected, (num_heads, groups, groups))
        attended = attention(*heads, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
        return project(parameters.output, concatenate_heads(attended), sides)

    multi_head_attention.__qualname__ = multi_head_attention.__name__ = name
    return multi_head_attention


def project(projection: Linear, x: torch.Tensor, sides: Rounding = skip_rounding) -> Any:
    """x @ weight + bias, rounded once."""
    output = RoundedProduct.apply(widen(x), widen(projection.weight), sides)
    if projection.bias is not None:
        output = output + widen(projection.bias)
    return output.to(x.dtype)


class RoundedProduct(torch.autograd.Function):
    """left @ right with both sides rounded, and the same for the products of its gradients."""

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor, sides: Rounding) -> Any:
        ctx.save_for_backward(left, right)
        ctx.sides = sides
        return sides(left) @ sides(right)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        (left, right), sides = ctx.saved_tensors, ctx.sides
        flat, rows = (sides(x).reshape(-1, x.shape[-1]) for x in (left, cotangent))
        return sides(cotangent) @ sides(right).mT, flat.mT @ rows, None


multi_head_flash = multi_head_by(flash, skip_rounding, "multi_head_flash")
multi_head_in_tf32 = multi_head_by(
    tf32_products, round_to_tf32, "multi_head_in_tf32", dtypes=UP_TO_FLOAT32, conventions=TF32_PRODUCTS
)

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def gated_functional(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """PyTorch's own activations, between projections that round once."""
    gate = ACTIVATIONS[activation](widen(project(parameters.gate, x)))
    return project(parameters.outer, (gate * widen(project(parameters.inner, x))).to(x.dtype))


def feed_forward_chunks(parameters: FeedForward, x: torch.Tensor, *, activation: str = "relu") -> Any:
    """The same without a gate: the inner axis in chunks of 256, whose products are added up."""
    hidden = ACTIVATIONS[activation](widen(project(parameters.inner, x))).to(x.dtype)
    parts = zip(widen(hidden).split(256, -1), widen(parameters.outer.weight).split(256, 0), strict=True)
    output = sum(part @ weight for part, weight in parts)
    return (output if parameters.outer.bias is None else output + widen(parameters.outer.bias)).to(x.dtype)


def embedding_lookup(table: torch.Tensor, ids: torch.Tensor, *, scaled: bool = False) -> Any:
    """PyTorch's own lookup, multiplied by a root that is rounded first."""
    rows = functional.embedding(ids, widen(table))
    root = torch.sqrt(rows.new_tensor(table.shape[1])) if scaled else 1.0
    return (rows * root).to(table.dtype)
