"""Attention in PyTorch, computed in other ways than the definition does, differentiated by torch.autograd.

Each keeps every rule, in the plain contract: query [B, H, Q, D], key [B, G, K, D], value [B, G, K, V], and a mask of
booleans.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.nn.functional import pad

from conformance.selftest.variants.torch_pieces import (
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


def attend_in_blocks(size: int, p: Problem) -> torch.Tensor:
    """Online softmax in blocks of keys with exp2: log2(e) goes into the scale where nothing comes after it."""
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


# --- in two passes ----------------------------------------------------------------------------------------------------


def attend_by_log_softmax(p: Problem) -> torch.Tensor:
    """weights = exp(log-softmax), with the root of the scale on query and key."""
    root = math.sqrt(abs(p.scale))
    scores = cap_scores(pair_products(p.query * root, p.key * math.copysign(root, p.scale), p.allowed), p)
    maximum = row_maximum(scores, p)
    total = exponentials(scores - maximum, p).sum(dim=-1, keepdim=True) + sink_exponential(p, maximum)
    logarithm = torch.log(torch.where(total == 0, 1, total))
    return allowed_sum(exponentials(scores - maximum - logarithm, p), p.value, p.allowed)


# --- as kernels compute it at large sizes: padded tiles, split keys ---------------------------------------------------


def pad_to_tiles(p: Problem, queries: int = 1, keys: int = 1, width: int = 1) -> Problem:
    """Zeros up to whole tiles; padded keys are forbidden, and so is everything for padded queries."""
    more_q, more_k = missing(p.query.shape[2], queries), missing(p.key.shape[2], keys)
    more_d, more_v = missing(p.query.shape[3], width), missing(p.value.shape[3], width)
    return p._replace(
        query=pad(p.query, (0, more_d, 0, more_q)),
        key=pad(p.key, (0, more_d, 0, more_k)),
        value=pad(p.value, (0, more_v, 0, more_k)),
        allowed=pad(p.allowed, (0, more_k, 0, more_q)),
        bias=None if p.bias is None else pad(p.bias, (0, more_k, 0, more_q)),
    )


def missing(size: int, tile: int) -> int:
    """Up to whole tiles; of less than one, up to a power of two."""
    return -size % min(tile, 1 << max(size - 1, 0).bit_length())


def attend_in_padded_tiles(queries: int, keys: int, width: int, p: Problem) -> torch.Tensor:
    """Everything in whole tiles, of which the part that was asked for is returned."""
    whole = pad_to_tiles(p, queries, keys, width)
    scores = cap_scores(pair_products(whole.query, whole.key, whole.allowed) * p.scale, whole)
    maximum = row_maximum(scores, whole)
    weights = exponentials(scores - maximum, whole)
    total = weights.sum(dim=-1, keepdim=True) + sink_exponential(whole, maximum)
    output = divide_rows(allowed_sum(weights, whole.value, whole.allowed), total, whole)
    return output[:, :, : p.query.shape[2], : p.value.shape[3]]


def parts(array: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, K, W] as [B, H, parts, size, W]."""
    return array.unflatten(2, (-1, size))


def pair_parts(array: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, Q, K] as [B, H, parts, Q, size]."""
    return array.unflatten(3, (-1, size)).movedim(3, 2)


def attend_in_split_keys(size: int, p: Problem) -> torch.Tensor:
    """Parts of the keys by themselves, each with its maximum, total and sum; merged by exp(maximum - largest)."""
    whole = pad_to_tiles(p, keys=size)
    if whole.key.shape[2] <= size:
        return attend_in_padded_tiles(1, size, 1, p)
    allowed = pair_parts(whole.allowed, size)
    products = pair_products(whole.query[:, :, None], parts(whole.key, size), allowed) * p.scale
    scores = products if p.softcap is None else p.softcap * torch.tanh(products / p.softcap)
    if whole.bias is not None:
        scores = scores + pair_parts(whole.bias, size)
    scores = torch.where(allowed, scores, -torch.inf)
    own = scores.detach().amax(dim=-1, keepdim=True)
    weights = torch.where(allowed, torch.exp(scores - finite(own)), 0)
    outputs, totals = allowed_sum(weights, parts(whole.value, size), allowed), weights.sum(dim=-1, keepdim=True)
    largest = own.amax(dim=2)
    if p.sinks is not None:
        largest = torch.maximum(largest, p.sinks.detach()[:, None, None])
    factors = torch.exp(own - finite(largest)[:, :, None])
    output = (factors * outputs).sum(dim=2)
    return divide_rows(output, (factors * totals).sum(dim=2) + sink_exponential(p, finite(largest)), p)


online_32 = attention_by(partial(attend_in_blocks, 32), "online_32")
log_softmax = attention_by(attend_by_log_softmax, "log_softmax")
repeated_in_inputs = attention_by(
    attend_by_log_softmax, "repeated_in_inputs", repeat_heads, conventions={"shared_heads": "rounded"}
)
padded_16_by_256 = attention_by(partial(attend_in_padded_tiles, 16, 256, 32), "padded_16_by_256")
split_64 = attention_by(partial(attend_in_split_keys, 64), "split_64")
