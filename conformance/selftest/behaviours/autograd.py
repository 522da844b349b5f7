"""What PyTorch invites: graphs cut, NaN in gradients, arguments and cotangents changed in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import torch_impl
from conformance.selftest.behaviours.behaviour import (
    Arguments,
    Behaviour,
    Function,
    change_arguments,
    change_result,
)

if TYPE_CHECKING:
    from specification.masks import Mask


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: Mask | torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> Any:
    """torch_impl's."""
    return torch_impl.attention(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)


def detach_keys(a: Arguments) -> None:
    a["key"] = a["key"].detach()


def convert_sinks(a: Arguments) -> None:
    """Sinks pass through Python numbers."""
    if a["sinks"] is not None:
        a["sinks"] = torch.tensor(a["sinks"].tolist(), dtype=a["sinks"].dtype)


def scale_query(a: Arguments) -> None:
    """In place, where autograd lets it."""
    query, factor = a["query"], a["query"].shape[-1] ** -0.5 if a["scale"] is None else a["scale"]
    a["query"], a["scale"] = query.mul(factor) if query.requires_grad else query.mul_(factor), 1.0


def repeat_heads(query: torch.Tensor, *arrays: torch.Tensor) -> Any:
    ratio = query.shape[1] // max(arrays[0].shape[1], 1)
    return [array.repeat_interleave(ratio, dim=1) for array in arrays]


def replace_nan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None
) -> Any:
    """-inf is added; right in empty rows, but only forwards: the softmax's gradient there is NaN."""
    wide = query.dtype if query.dtype == torch.float64 else torch.float32
    key, value = (array.to(wide) for array in repeat_heads(query, key, value))
    scores = query.to(wide) @ key.mT * query.shape[-1] ** -0.5
    if mask is None:
        return (torch.softmax(scores, dim=-1) @ value).to(query.dtype)
    weights = torch.softmax(scores + torch.where(mask, 0, -torch.inf), dim=-1)
    return (torch.where(mask.any(-1, keepdim=True), weights, 0) @ value).to(query.dtype)


def use_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None) -> Any:
    """scaled_dot_product_attention, which lets NaN through a mask."""
    key, value = repeat_heads(query, key, value)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class ClearCotangent(torch.autograd.Function):
    """Do nothing forwards, and leave zeros where the cotangent was."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor) -> Any:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        kept = cotangent.clone()
        cotangent.zero_()
        return kept


def make_behaviour(rule: str, name: str, function: Function) -> Behaviour:
    return Behaviour(rule, name, function, attention, arrays="torch")


BEHAVIOURS = (
    make_behaviour("ATT-12", "keys detached", change_arguments(attention, detach_keys)),
    make_behaviour("ATT-12", "sinks by way of numbers", change_arguments(attention, convert_sinks)),
    make_behaviour("ATT-6", "zeros for NaN, but not in the gradients", replace_nan),
    make_behaviour("MASK-7", "scaled_dot_product_attention", use_fused),
    make_behaviour("ATT-13", "query scaled by mul_", change_arguments(attention, scale_query)),
    Behaviour(
        "ATT-13",
        "cotangent cleared in the backward pass",
        change_result(torch_impl.layer_norm, lambda a, output: ClearCotangent.apply(output)),
        torch_impl.layer_norm,
        "layer_norm",
        "torch",
    ),
)
