"""Attention in blocks of keys, as fast kernels do it, with a mistake that was left in for you to find.

conformance check examples/online_softmax.py:attention --operation attention --arrays torch
"""

import math

import torch
from torch import Tensor

import conformance

BLOCK = 16


# A weight of 0 times a NaN behind the mask is NaN: this kernel promises nothing there, and says so.
@conformance.declare(conventions={"isolation": "finite"})
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Softmax without ever holding a whole row: a running maximum, a running sum, and a running output."""
    B, H, Q, D = query.shape
    K, groups = key.shape[2], H // max(key.shape[1], 1)
    scale = 1 / math.sqrt(D) if scale is None else scale
    dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
    query = query.to(wide) * scale
    key = key.to(wide).repeat_interleave(groups, dim=1)
    value = value.to(wide).repeat_interleave(groups, dim=1)
    allowed = torch.ones(Q, K, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand(B, H, Q, K)
    maximum = query.new_full((B, H, Q, 1), torch.finfo(wide).min)
    total = query.new_zeros(B, H, Q, 1)
    output = query.new_zeros(B, H, Q, value.shape[-1])
    for start in range(0, K, BLOCK):
        block = slice(start, min(start + BLOCK, K))
        scores = query @ key[:, :, block].transpose(-1, -2)
        scores = scores.masked_fill(~allowed[..., block], -torch.inf)
        larger = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True)).detach()
        exponentials = torch.exp(scores - larger)
        rescale = torch.exp(maximum - larger)
        total = total * rescale + exponentials.sum(dim=-1, keepdim=True)
        output = output + exponentials @ value[:, :, block]
        maximum = larger
    return (output / total.clamp_min(1e-30)).to(dtype)
