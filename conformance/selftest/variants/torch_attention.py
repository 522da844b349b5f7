"""Attention in PyTorch, computed in other ways than the definition does, differentiated by torch.autograd.

Each keeps every rule, in the plain contract: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], and a mask of
booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.cases.declaration import declare
from conformance.selftest.variants.torch_pieces import (
    Problem,
    capped,
    divided,
    exponentials,
    finite,
    first_maximum,
    problem,
    row_maximum,
    sink_exponential,
)
from torch_impl.attention_steps import allowed_sum, pair_products, repeat_heads

Compute = Callable[[Problem], torch.Tensor]
LOG2E = math.log2(math.e)


def attention_by(compute: Compute, name: str, repeat: Callable[[Any, int], Any] = lambda x, H: x) -> Callable[..., Any]:
    """The function in the plain contract. repeat: what is done with keys and values before they are widened."""

    def attention(
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
    ) -> Any:
        key, value = (repeat(array, query.shape[1]) for array in (key, value))
        return compute(problem(query, key, value, mask, bias, scale, softcap, sinks)).to(query.dtype)

    attention.__qualname__ = attention.__name__ = name
    return attention


# --- online -----------------------------------------------------------------------------------------------------------


def in_blocks(size: int) -> Compute:
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
            scores = capped(pair_products(p.query, key, allowed) * scale, p, keys)
            raised = torch.amax(torch.cat([maximum, scores.detach()], dim=-1), dim=-1, keepdim=True)
            factor = torch.exp2((maximum - finite(raised)) * base)
            weights = torch.where(allowed, torch.exp2((scores - finite(raised)) * base), 0)
            total = total * factor + weights.sum(dim=-1, keepdim=True)
            output = output * factor + allowed_sum(weights, value, allowed)
            maximum = raised
        return divided(output, total, p)

    return compute


# --- in two passes ----------------------------------------------------------------------------------------------------


def by_log_softmax(p: Problem) -> torch.Tensor:
    """weights = exp(log-softmax), with the root of the scale on query and key."""
    root = math.sqrt(abs(p.scale))
    scores = capped(pair_products(p.query * root, p.key * math.copysign(root, p.scale), p.allowed), p)
    maximum = row_maximum(scores, p)
    total = exponentials(scores - maximum, p).sum(dim=-1, keepdim=True) + sink_exponential(p, maximum)
    logarithm = torch.log(torch.where(total == 0, 1, total))
    return allowed_sum(exponentials(scores - maximum - logarithm, p), p.value, p.allowed)


def in_chunks(size: int) -> Compute:
    """The scale on the keys; sums over a few keys at a time, which are then added up; unnormalised until the end."""

    def compute(p: Problem) -> torch.Tensor:
        scores = capped(pair_products(p.query, p.key * p.scale, p.allowed), p)
        maximum = row_maximum(scores, p)
        weights = exponentials(scores - maximum, p)
        total = sink_exponential(p, maximum) + torch.zeros_like(maximum)
        output = p.query.new_zeros((*p.query.shape[:3], p.value.shape[-1]))
        for part, value, allowed in zip(
            weights.split(size, 3), p.value.split(size, 2), p.allowed.split(size, 3), strict=True
        ):
            total = total + part.sum(dim=-1, keepdim=True)
            output = output + allowed_sum(part, value, allowed)
        return divided(output, total, p)

    return compute


online_32 = attention_by(in_blocks(32), "online_32")
online_64 = attention_by(in_blocks(64), "online_64")
online_128 = attention_by(in_blocks(128), "online_128")
log_softmax = attention_by(by_log_softmax, "log_softmax")
chunks_of_8 = attention_by(in_chunks(8), "chunks_of_8")
repeated_in_inputs = declare(conventions={"shared_heads": "rounded"})(
    attention_by(by_log_softmax, "repeated_in_inputs", repeat_heads)
)
