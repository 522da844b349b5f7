"""Attention in PyTorch, computed in other ways than the definition does, differentiated by torch.autograd.

Each keeps every rule, in the plain contract: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], and a mask of
booleans.
"""

from __future__ import annotations

import math

import torch

from conformance.selftest.variants.torch_pieces import (
    Compute,
    Problem,
    attention_by,
    cap_scores,
    divide_rows,
    exponentials,
    finite,
    first_maximum,
    row_maximum,
    sink_exponential,
)
from torch_impl.attention_steps import allowed_sum, pair_products, repeat_heads

LOG2E = math.log2(math.e)


# --- online -----------------------------------------------------------------------------------------------------------


def attend_in_blocks(size: int) -> Compute:
    """Online softmax in blocks of keys with exp2: log2(e) goes into the scale where nothing comes after it."""

    def compute(p: Problem) -> torch.Tensor:
        folded = p.softcap is None and p.bias is None and p.sinks is None
        scale, base = (p.scale * LOG2E, 1.0) if folded else (p.scale, LOG2E)
        maximum = first_maximum(p)
        total = torch.zeros_like(maximum) + sink_exponential(p, finite(maximum))
        output = p.query.new_zeros((*p.query.shape[:3], p.value.shape[-1]))
        # `split` gives one block even of no keys, which connects the gradients. Those of slices would be as long as all
        # keys, for each block.
        blocks = zip(p.key.split(size, 2), p.value.split(size, 2), p.allowed.split(size, 3), strict=True)
        for number, (key, value, allowed) in enumerate(blocks):
            keys = slice(number * size, (number + 1) * size)
            scores = cap_scores(pair_products(p.query, key, allowed) * scale, p, keys)
            raised = torch.amax(torch.cat([maximum, scores.detach()], dim=-1), dim=-1, keepdim=True)
            factor = torch.exp2((maximum - finite(raised)) * base)
            weights = torch.where(allowed, torch.exp2((scores - finite(raised)) * base), 0)
            total = total * factor + weights.sum(dim=-1, keepdim=True)
            output = output * factor + allowed_sum(weights, value, allowed)
            maximum = raised
        return divide_rows(output, total, p)

    return compute


# --- in two passes ----------------------------------------------------------------------------------------------------


def attend_by_log_softmax(p: Problem) -> torch.Tensor:
    """weights = exp(log-softmax), with the root of the scale on query and key."""
    root = math.sqrt(abs(p.scale))
    scores = cap_scores(pair_products(p.query * root, p.key * math.copysign(root, p.scale), p.allowed), p)
    maximum = row_maximum(scores, p)
    total = exponentials(scores - maximum, p).sum(dim=-1, keepdim=True) + sink_exponential(p, maximum)
    logarithm = torch.log(torch.where(total == 0, 1, total))
    return allowed_sum(exponentials(scores - maximum - logarithm, p), p.value, p.allowed)


online_32 = attention_by(attend_in_blocks(32), "online_32")
log_softmax = attention_by(attend_by_log_softmax, "log_softmax")
repeated_in_inputs = attention_by(
    attend_by_log_softmax, "repeated_in_inputs", repeat_heads, conventions={"shared_heads": "rounded"}
)
