"""Faults that PyTorch invites: graphs cut, arguments changed in place, NaN in gradients, wrong backward passes.

They are made from `torch_impl`.
"""

from __future__ import annotations

from typing import Any

import torch

import torch_impl
from conformance.selftest.faults.fault import Fault


def attention(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None,
              softcap: Any = None, sinks: Any = None) -> Any:  # fmt: skip
    """torch_impl's."""
    return torch_impl.attention(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)


def planted(rule: str, name: str, function: Any) -> Fault:
    return Fault(rule, name, "attention", function, attention, "torch")


# --- graphs that are cut ----------------------------------------------------------------------------------------------


def detached_keys(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    return attention(query, key.detach(), value, mask=mask, scale=scale)


def detached_weights(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    return attention(query.detach(), key.detach(), value, mask=mask, scale=scale)


def through_numpy(query: Any, key: Any, value: Any, *, mask: Any = None, sinks: Any = None) -> Any:
    """Sinks by way of Python numbers."""
    if sinks is not None:
        sinks = torch.tensor(sinks.tolist(), dtype=sinks.dtype)
    return attention(query, key, value, mask=mask, sinks=sinks)


# --- softmax as it is often written -----------------------------------------------------------------------------------


def plain(query: Any, key: Any, value: Any, mask: Any, filling: float, dtype: Any = None) -> Any:
    """masked_fill, softmax, matmul, with [B, G, K, W] repeated to [B, H, K, W]."""
    wide = dtype or (query.dtype if query.dtype == torch.float64 else torch.float32)
    H, G = query.shape[1], key.shape[1]
    key, value = (array.repeat_interleave(H // max(G, 1), dim=1).to(wide) for array in (key, value))
    scores = query.to(wide) @ key.mT * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, filling)
    return scores, value


def zeros_for_nan(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """-inf is added; right in empty rows, but only forwards: the softmax's gradient there is NaN."""
    scores, value = plain(query, key, value, None, 0)
    if mask is None:
        return (torch.softmax(scores, dim=-1) @ value).to(query.dtype)
    weights = torch.softmax(scores + torch.where(mask, 0, -torch.inf), dim=-1)
    weights = torch.where(mask.any(-1, keepdim=True), weights, 0)
    return (weights @ value).to(query.dtype)


def lowest_filling(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    scores, value = plain(query, key, value, mask, torch.finfo(torch.float32).min)
    return (torch.softmax(scores, dim=-1) @ value).to(query.dtype)


def in_the_inputs_dtype(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    scores, value = plain(query, key, value, mask, -torch.inf, query.dtype)
    weights = torch.softmax(scores, dim=-1)
    return (torch.where(weights.isnan() & scores.isneginf(), 0, weights) @ value).to(query.dtype)


def fused(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """scaled_dot_product_attention, which lets NaN through a mask."""
    H, G = query.shape[1], max(key.shape[1], 1)
    key, value = (array.repeat_interleave(H // G, dim=1) for array in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


# --- memory -----------------------------------------------------------------------------------------------------------


def scaled_in_place(query: Any, key: Any, value: Any, *, mask: Any = None, scale: Any = None) -> Any:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    query = query.mul(factor) if query.requires_grad else query.mul_(factor)
    return attention(query, key, value, mask=mask, scale=1.0)


# --- backward passes --------------------------------------------------------------------------------------------------


class Unscaled(torch.autograd.Function):
    """The right result, with a gradient of the scores that lacks the scale."""

    @staticmethod
    def forward(ctx: Any, query: Any, factor: float) -> Any:
        return query * factor

    @staticmethod
    def backward(ctx: Any, bar: Any) -> tuple[Any, None]:
        return bar, None


def unscaled_backward(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """The scale is applied to the query, whose gradient leaves it out; it is a power of two, so nothing is rounded."""
    return attention(Unscaled.apply(query, 0.5), key, value, mask=mask, bias=bias, scale=2 * query.shape[-1] ** -0.5)


class StraightThroughNaN(torch.autograd.Function):
    """The values' gradient where a value is 0 is lost, as by a product with its sign."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        ctx.save_for_backward(value)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        (value,) = ctx.saved_tensors
        return torch.where(value < 0, 0, bar)


def rectified_backward(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """The values' gradient is kept where they are positive only."""
    return attention(query, key, StraightThroughNaN.apply(value), mask=mask, bias=bias)


def norm_from_16_bits(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """Moments in the dtype of x, except for float64."""
    axes = tuple(range(x.ndim - weight.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    variance = ((x - mean) ** 2).mean(axes, keepdim=True)
    normalized = ((x - mean) * torch.rsqrt(variance + eps)).to(weight.dtype)
    output = normalized * weight if bias is None else normalized * weight + bias
    return output.to(x.dtype)


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    """torch_impl's."""
    return torch_impl.layer_norm(x, weight, bias, eps=eps)


class WithoutStrides(torch.autograd.Function):
    """Nothing done, with a backward pass that reads the cotangent's numbers one after the other in memory."""

    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        whole = bar.untyped_storage().nbytes() >= bar.numel() * bar.element_size()
        return bar.as_strided(bar.shape, torch.empty(bar.shape, device="meta").stride()) if whole else bar


def cotangent_without_strides(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    return WithoutStrides.apply(layer_norm(x, weight, bias, eps=eps))


class ClearedCotangent(torch.autograd.Function):
    """Nothing done, with a backward pass that leaves zeros where the cotangent was."""

    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        kept = bar.clone()
        bar.zero_()
        return kept


def cotangent_cleared(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    return ClearedCotangent.apply(layer_norm(x, weight, bias, eps=eps))


FAULTS = (
    planted("ATT-12", "keys detached", detached_keys),
    planted("ATT-12", "weights detached", detached_weights),
    planted("ATT-12", "sinks by way of numbers", through_numpy),
    planted("ATT-6", "zeros for NaN, but not in the gradients", zeros_for_nan),
    planted("ATT-6", "the lowest float32 filled in", lowest_filling),
    planted("ATT-9", "softmax in the inputs' dtype", in_the_inputs_dtype),
    planted("MASK-7", "scaled_dot_product_attention", fused),
    planted("ATT-13", "query scaled by mul_", scaled_in_place),
    planted("ATT-12", "a backward pass without the scale", unscaled_backward),
    planted("ATT-12", "a backward pass of positive values only", rectified_backward),
    Fault("NORM-2", "moments in the dtype of x", "layer_norm", norm_from_16_bits, layer_norm, "torch"),
    Fault("ATT-13", "strides of the cotangent ignored", "layer_norm", cotangent_without_strides, layer_norm, "torch"),
    Fault("ATT-13", "cotangent cleared in the backward pass", "layer_norm", cotangent_cleared, layer_norm, "torch"),
)  # fmt: skip
