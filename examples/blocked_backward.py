"""Causal, grouped attention in blocks of keys, with its own backward pass: what a fused kernel computes, in PyTorch.

conformance check examples/blocked_backward.py:attention --operation attention --profile strict

B is the batch, and H the number of query heads. Q and K are the lengths of queries and keys, D and V the widths of keys
and values. G is the number of key heads, and N = H / G the number of query heads that read one of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import conformance
from specification import Causal
from specification.masks import Mask

BLOCK = 16


def scores_of(query: Tensor, key: Tensor, causal: bool, start: int, Q: int, K: int) -> Tensor:
    """The scores [B, G, N, Q, block] of the keys from `start` on, with -inf where the mask forbids a key."""
    scores = query @ key.mT
    if causal:  # at the bottom right: the last query sees the last key
        positions = torch.arange(start, start + key.shape[-2], device=key.device)
        scores = scores.masked_fill(positions > torch.arange(Q, device=key.device)[:, None] + K - Q, -torch.inf)
    return scores


def blocks(K: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, K)) for start in range(0, K, BLOCK)]


class BlockedAttention(torch.autograd.Function):
    """No row of scores is ever held as a whole, in neither pass."""

    apply: Callable[..., Tensor]  # torch leaves open what it returns

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
        (B, H, Q, D), (G, K), V = query.shape, key.shape[1:3], value.shape[-1]
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        # Query heads that share a key head stand beside it in an axis of their own. So their gradients are added up in
        # `wide`, and rounded once.
        q = query.to(wide).reshape(B, G, H // G, Q, D) * scale
        k, v = (array.to(wide)[:, :, None] for array in (key, value))
        maximum = q.new_full((B, G, H // G, Q, 1), torch.finfo(wide).min)  # finite: -inf - (-inf) would be NaN
        total, output = torch.zeros_like(maximum), q.new_zeros(B, G, H // G, Q, V)
        for block in blocks(K):
            scores = scores_of(q, k[..., block, :], causal, block.start, Q, K)
            larger = torch.maximum(maximum, scores.amax(-1, keepdim=True))
            exponentials, rescale = torch.exp(scores - larger), torch.exp(maximum - larger)
            total = total * rescale + exponentials.sum(-1, keepdim=True)
            output = output * rescale + exponentials @ v[..., block, :]
            maximum = larger
        empty = total == 0  # a query that sees no key: its row is 0
        output = output / torch.where(empty, 1, total)
        logsumexp = torch.where(empty, 0, maximum + torch.log(total))
        ctx.save_for_backward(query, key, value, output, logsumexp)  # the output in `wide`, not rounded
        ctx.scale, ctx.causal = scale, causal
        return output.reshape(B, H, Q, V).to(dtype)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        [cotangent] = cotangents
        query, key, value, output, logsumexp = ctx.saved_tensors
        (B, H, Q, D), (G, K), wide = query.shape, key.shape[1:3], output.dtype
        q = query.to(wide).reshape(B, G, H // G, Q, D) * ctx.scale
        k, v = (array.to(wide)[:, :, None] for array in (key, value))
        of_output = cotangent.to(wide).reshape(output.shape)
        mean = (of_output * output).sum(-1, keepdim=True)  # over all keys, not over those of a block
        of_query, of_key, of_value = torch.zeros_like(q), torch.zeros_like(k[:, :, 0]), torch.zeros_like(v[:, :, 0])
        for block in blocks(K):
            weights = torch.exp(scores_of(q, k[..., block, :], ctx.causal, block.start, Q, K) - logsumexp)
            of_scores = weights * (of_output @ v[..., block, :].mT - mean)
            of_query += of_scores @ k[..., block, :]
            of_key[:, :, block] = (of_scores.mT @ q).sum(2)  # over the query heads that share the key head
            of_value[:, :, block] = (weights.mT @ of_output).sum(2)
        of_query = (of_query * ctx.scale).reshape(query.shape)
        return *(array.to(query.dtype) for array in (of_query, of_key, of_value)), None, None


@conformance.declare(
    "structured,causal,no-offset,scale,gqa,cross,value_width,gradients",
    # `causal` says where the mask stands; `saved`, that the backward pass keeps one log-sum-exp of each row, not the
    # maximum and the sum; `isolation`, that NaN behind the mask is not held back: 0 * NaN is NaN.
    conventions={"causal": "bottom_right", "saved": "logsumexp", "isolation": "finite"},
)
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None = None, scale: float | None = None
) -> Tensor:
    if not (mask is None or (isinstance(mask, Causal) and mask.offset is None)):
        raise NotImplementedError("no mask but the causal one")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return BlockedAttention.apply(query, key, value, scale, mask is not None)
