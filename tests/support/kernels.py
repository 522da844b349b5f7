"""Kernels with the signatures of fast ones, for the adapters in docs/adapters.md. Inside is plain attention."""

from __future__ import annotations

import torch
from torch import Tensor

import torch_impl
from specification import Causal, KeyLengths, SlidingWindow
from specification.masks import Mask


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """[batch, length, heads, width], in 16 bits. Masks stand at the bottom right; -1 is a side without an end.

    Slopes are [heads] or [batch, heads]: their bias is -slope * |i + K - Q - j|.
    """
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    offset = k.shape[1] - q.shape[1]
    left, right = (None if side < 0 else side for side in window_size)
    mask = Causal(offset) if causal else None if (left, right) == (None, None) else SlidingWindow(left, right, offset)
    bias = None
    if alibi_slopes is not None:
        distances = (torch.arange(q.shape[1])[:, None] + offset - torch.arange(k.shape[1])).abs()
        bias = -torch.atleast_2d(alibi_slopes)[..., None, None] * distances
    q, k, v = (array.transpose(1, 2) for array in (q, k, v))
    output = torch_impl.attention(q, k, v, mask=mask, bias=bias, scale=softmax_scale, softcap=softcap or None)
    return output.transpose(1, 2)


def causal_kernel(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float | None = None) -> Tensor:
    """[batch, heads, length, width]: always causal, at the bottom right."""
    return torch_impl.attention(q, k, v, mask=Causal(k.shape[2] - q.shape[2]), scale=sm_scale)


def windowed_kernel(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float | None = None, before: int = 31) -> Tensor:
    """[batch, heads, length, width]: each query sees its own key and 31 before it, from the bottom right."""
    return torch_impl.attention(q, k, v, mask=SlidingWindow(before, 0, k.shape[2] - q.shape[2]), scale=sm_scale)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
) -> Tensor:
    """[tokens, heads, width]: sequences one behind the other, each up to where the next begins."""
    queries, keys = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    if not len(queries):
        return q.new_zeros(0, q.shape[1], v.shape[-1])
    assert queries.max() <= max_seqlen_q
    assert keys.max() <= max_seqlen_k
    query = padded(q, cu_seqlens_q, max_seqlen_q)
    key, value = (padded(array, cu_seqlens_k, max_seqlen_k) for array in (k, v))
    output = torch_impl.attention(query, key, value, mask=KeyLengths(keys), scale=softmax_scale).transpose(1, 2)
    return output[torch.arange(output.shape[1]) < queries[:, None]]


def padded(tokens: Tensor, starts: Tensor, length: int) -> Tensor:
    """[sequences, heads, length, width]: what follows a sequence stands in for what it lacks."""
    if not len(tokens):
        return tokens.new_zeros(len(starts) - 1, tokens.shape[1], length, tokens.shape[2])
    places = starts[:-1, None] + torch.arange(length)
    return tokens[places.clamp(max=len(tokens) - 1)].transpose(1, 2)


def paged_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, scale: float
) -> Tensor:
    """One query [heads, width] of each sequence; caches [pages, 16, heads, width]; tables [sequences, pages]."""
    keys, values = (cache[block_tables].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache))
    return torch_impl.attention(q[:, :, None], keys, values, mask=KeyLengths(seq_lens), scale=scale)[:, :, 0]


def padded_attention(
    q: Tensor, k: Tensor, v: Tensor, query_lengths: Tensor, key_lengths: Tensor, *, softmax_scale: float | None = None
) -> Tensor:
    """[sequences, length, heads, width]; what follows a sequence is not read, and its rows hold anything."""
    real = (torch.arange(q.shape[1]) < query_lengths[:, None])[..., None, None]
    query, key, value = (array.transpose(1, 2) for array in (torch.where(real, q, 0), k, v))
    output = torch_impl.attention(query, key, value, mask=KeyLengths(key_lengths), scale=softmax_scale).transpose(1, 2)
    return torch.where(real, output, float("nan"))


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Caches [batch, length, heads, width], to which new keys and values are appended; causal at their last key."""
    lengths = cache_seqlens.clone()
    if k is not None and v is not None:
        for cache, new in ((k_cache, k), (v_cache, v)):
            for element, start in enumerate(lengths.tolist()):
                cache[element, start : start + new.shape[1]] = new[element]
        lengths += k.shape[1]
    mask: Mask = KeyLengths(lengths)
    mask = mask & Causal(lengths - q.shape[1]) if causal else mask
    query, key, value = (array.transpose(1, 2) for array in (q, k_cache, v_cache))
    return torch_impl.attention(query, key, value, mask=mask, scale=softmax_scale).transpose(1, 2)
