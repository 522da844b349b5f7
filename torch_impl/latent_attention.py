"""Latent attention in PyTorch (rules MLA-1, MLA-2; DeepSeek-V2, arXiv 2405.04434, section 2.1).

A token's keys and values of all heads come from one short vector, its latent, and from one rotated key that all heads
share. These two are all that a cache has to hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer

from specification import LatentAttention, checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.masks import Mask
from specification.rotary import Rotary, Rotation, Scaling
from torch_impl.attention import attention
from torch_impl.dtypes import Context, GradientByHand, product, widen
from torch_impl.layer_norm import rms_norm
from torch_impl.masks import readable
from torch_impl.multi_head_attention import concatenate_heads, linear, split_heads
from torch_impl.rotary import rotary_table, rotate

__all__ = ["latent_attention"]


def take_columns(x: Float[torch.Tensor, "... W"], start: int, end: int) -> Float[torch.Tensor, "... w"]:
    """Columns start to end - 1."""
    return x[..., start:end]


def append_columns(x: Float[torch.Tensor, "B H T W"], shared: Float[torch.Tensor, "B #H T R"]) -> Any:
    """The columns of x in each head, then those that one head has for all, or each head has for itself."""
    return torch.cat([x, shared.expand(*x.shape[:-1], shared.shape[-1])], dim=-1)


def key_weights(weight: Float[torch.Tensor, "C HDV"], num_heads: int, width: int) -> Float[torch.Tensor, "H D C"]:
    """In each head the first D columns of the up-projection, transposed: they take a query to the latents (MLA-2)."""
    return weight.reshape(weight.shape[0], num_heads, -1)[..., :width].permute(1, 2, 0)


def value_weights(weight: Float[torch.Tensor, "C HDV"], num_heads: int, width: int) -> Float[torch.Tensor, "H C V"]:
    """In each head the columns of the up-projection from D on: they take a latent to the value (MLA-2)."""
    return weight.reshape(weight.shape[0], num_heads, -1)[..., width:].transpose(0, 1)


def project_heads(weights: Float[torch.Tensor, "H I O"], x: Float[torch.Tensor, "B H T I"]) -> Any:
    """x @ weight, each head with its own weight, rounded once to the dtype of x."""
    (B, H, T, _), columns = x.shape, weights.shape[-1]
    output = HeadProduct.apply(widen(x).transpose(0, 1).flatten(1, 2), widen(weights))
    return output.reshape(H, B, T, columns).transpose(0, 1).to(x.dtype)


class HeadProduct(GradientByHand):
    """x @ weights, [H, N, I] and [H, I, O]. Autocast narrows neither this product nor those of its gradient."""

    @staticmethod
    def forward(x: Any, weights: Any) -> Any:
        return product(x, weights)

    @staticmethod
    def backward(ctx: Context, cotangent: torch.Tensor) -> tuple[Any, Any]:
        x, weights = ctx.saved_tensors
        return HeadProduct.apply(cotangent, weights.mT), HeadProduct.apply(x.mT, cotangent)


def project_latent_queries(
    parameters: LatentAttention,
    x: Float[torch.Tensor, "B T E"],
    num_heads: int,
    rotation: Rotation,
    pairing: str,
    eps: float,
) -> Float[torch.Tensor, "B H T DR"]:
    """Queries by heads: compressed and normalised if the parameters say so, projected, the last R columns rotated."""
    if parameters.query_down is not None and parameters.query_norm is not None:
        x = rms_norm(linear(parameters.query_down, x), parameters.query_norm.weight, eps=eps)
    queries = split_heads(linear(parameters.query, x), num_heads)
    width = queries.shape[-1] - 2 * rotation.sine.shape[-1]
    rotated = rotate(take_columns(queries, width, queries.shape[-1]), *rotation, pairing)
    return append_columns(take_columns(queries, 0, width), rotated)


def project_latents(
    parameters: LatentAttention, x: Float[torch.Tensor, "B T E"], rotation: Rotation, pairing: str, eps: float
) -> tuple[Float[torch.Tensor, "B T C"], Float[torch.Tensor, "B T R"]]:
    """What a cache holds of x: the latents, normalised, and the keys that all heads share, rotated."""
    down, weight = linear(parameters.key_value_down, x), parameters.key_value_norm.weight
    latents = rms_norm(take_columns(down, 0, weight.shape[0]), weight, eps=eps)
    keys = rotate(split_heads(take_columns(down, weight.shape[0], down.shape[-1]), 1), *rotation, pairing)
    return latents, concatenate_heads(keys)


def attend_to_latents(
    parameters: LatentAttention,
    queries: Float[torch.Tensor, "B H Q DR"],
    latents: Float[torch.Tensor, "B K C"],
    keys: Float[torch.Tensor, "B K R"],
    *,
    scale: float | None = None,
    absorbed: bool = False,
    attention_function: Callable[..., Any] | None = None,
    **options: Any,
) -> Float[torch.Tensor, "B Q E_out"]:
    """What queries, latents and rotated keys give that are projected already (MLA-1; MLA-2 where absorbed).

    scale and options: keywords of `attention`, such as mask.
    """
    H, width = queries.shape[1], queries.shape[-1] - keys.shape[-1]
    scale = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    latents, keys = split_heads(latents, 1), split_heads(keys, 1)
    if absorbed:
        weight = parameters.key_value_up.weight
        inner = project_heads(key_weights(weight, H, width), take_columns(queries, 0, width))
        queries = append_columns(inner, take_columns(queries, width, queries.shape[-1]))
        sums = (attention_function or attention)(
            queries, append_columns(latents, keys), latents, scale=scale, **options
        )
        output = project_heads(value_weights(weight, H, width), sums)
    else:
        up = split_heads(linear(parameters.key_value_up, concatenate_heads(latents)), H)
        keys, values = append_columns(take_columns(up, 0, width), keys), take_columns(up, width, up.shape[-1])
        output = (attention_function or attention)(queries, keys, values, scale=scale, **options)
    return linear(parameters.output, concatenate_heads(output))


def latent_attention(
    parameters: LatentAttention,
    x: Float[torch.Tensor, "B T E"],
    *,
    num_heads: int,
    rotary_width: int,
    positions: Integer[torch.Tensor, "..."] | None = None,
    base: float = 10000.0,
    pairing: str = "interleaved",
    scaling: Scaling | None = None,
    length: int | None = None,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    eps: float = 1e-6,
    absorbed: bool = False,
) -> Float[torch.Tensor, "B T E_out"]:
    """Compress keys and values to a latent, attend in every head, and project what the heads give (MLA-1, MLA-2).

    R is rotary_width, D is query's columns / num_heads - R, V is key_value_up's columns / num_heads - D, C is the size
    of key_value_norm. Every projection, norm and rotation and the attention round to the dtype of x.

    Args:
        parameters: Projections in the dtype of x, each with a weight [in, out], and norms.
        x: [B, T, E], in float16, bfloat16, float32 or float64.
        num_heads: H.
        rotary_width: R, even and at least 2: the last columns of each head's query and key, which are rotated.
        positions: Of the tokens, [T] or [B, T]; None is 0, 1, 2, ...
        base, pairing, scaling, length: Of the rotation, as in `rotary_embedding`.
        mask: As in `attention`.
        scale: Of the scores, any finite number; None is 1 / sqrt(D + R).
        eps: Of both norms, at least 2**-126.
        absorbed: Whether queries are multiplied into the space of the latents, so that no key or value of a head is
            computed (MLA-2). The function is the same, and some roundings are others.

    Returns:
        A new array [B, T, E_out] in the dtype of x.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    rotary = Rotary(base=base, width=rotary_width, pairing=pairing, scaling=scaling)
    checks.latent_attention(parameters, x, num_heads, positions, rotary, length, absorbed)
    if positions is None:
        length = x.shape[1] if length is None else length
        positions = torch.arange(x.shape[1], device=x.device)
    length = checks.rotary_length(scaling, length, readable(positions))
    dtype = compute_dtype_name(dtype_name(x))
    rotation = Rotation(*rotary_table(positions, rotary_width, base, scaling, length, dtype))
    queries = project_latent_queries(parameters, x, num_heads, rotation, pairing, eps)
    latents, keys = project_latents(parameters, x, rotation, pairing, eps)
    return attend_to_latents(parameters, queries, latents, keys, mask=mask, scale=scale, absorbed=absorbed)
