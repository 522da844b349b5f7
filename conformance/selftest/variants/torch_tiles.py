"""Attention in PyTorch as kernels compute it at large sizes: padded tiles, split keys.

Each keeps every rule, in the plain contract of `torch_attention.py`.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from conformance.selftest.variants.torch_pieces import (
    Compute,
    Problem,
    attention_by,
    cap_scores,
    divide_rows,
    exponentials,
    finite,
    row_maximum,
    sink_exponential,
)
from torch_impl.attention_steps import allowed_sum, pair_products


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


def attend_in_padded_tiles(queries: int, keys: int, width: int) -> Compute:
    """Everything in whole tiles, of which the part that was asked for is returned."""

    def compute(p: Problem) -> torch.Tensor:
        whole = pad_to_tiles(p, queries, keys, width)
        scores = cap_scores(pair_products(whole.query, whole.key, whole.allowed) * p.scale, whole)
        maximum = row_maximum(scores, whole)
        weights = exponentials(scores - maximum, whole)
        total = weights.sum(dim=-1, keepdim=True) + sink_exponential(whole, maximum)
        output = divide_rows(allowed_sum(weights, whole.value, whole.allowed), total, whole)
        return output[:, :, : p.query.shape[2], : p.value.shape[3]]

    return compute


def parts(array: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, K, W] as [B, H, parts, size, W]."""
    return array.unflatten(2, (-1, size))


def pair_parts(array: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, Q, K] as [B, H, parts, Q, size]."""
    return array.unflatten(3, (-1, size)).movedim(3, 2)


def attend_in_split_keys(size: int) -> Compute:
    """Parts of the keys by themselves, each with its maximum, total and sum; merged by exp(maximum - largest)."""

    def compute(p: Problem) -> torch.Tensor:
        whole = pad_to_tiles(p, keys=size)
        if whole.key.shape[2] <= size:
            return attend_in_padded_tiles(1, size, 1)(p)
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

    return compute


padded_16_by_256 = attention_by(attend_in_padded_tiles(16, 256, 32), "padded_16_by_256")
split_64 = attention_by(attend_in_split_keys(64), "split_64")
