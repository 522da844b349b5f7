"""Attention in PyTorch (rules ATT-1 to ATT-14; "Attention Is All You Need", section 3.2).

The steps are in `attention_steps.py`, the faster ways to the same result in `engines/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float

from specification import checks
from torch_impl.attention_steps import (
    allowed_sum,
    attention_scores,
    fill_empty_rows,
    reference_attention,
    repeat_heads,
    softmax,
    visible_pairs,
)
from torch_impl.dtypes import widen
from torch_impl.engines import choice
from torch_impl.engines.blocked import Inputs, blocked_attention
from torch_impl.engines.fused import fused_attention
from torch_impl.masks import checked_mask


def attention(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    value: Float[torch.Tensor, "B G K V"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    dropout_keep: Bool[torch.Tensor, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
    engine: str = "auto",
) -> Float[torch.Tensor, "B H Q V"]:
    """output = softmax(softcap(scale * query . key) + bias) . value, over the keys that the mask allows.

    engine: "reference" is `reference_attention`, "blocked" the same in blocks with a memory of O(Q + K), "fused"
    PyTorch's own kernel or, on a GPU, one in Triton, "auto" the one that `explain_engine` tells.

    The output is a new tensor in the dtype and on the device of query, to which arrays inside the mask are moved.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H, query.device)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    chosen = choice.engine_for(engine, inputs, dropout_keep, empty_rows).engine
    if chosen == "reference":
        output, _ = reference_attention(
            query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
            dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
        )  # fmt: skip
    else:
        compute = fused_attention if chosen == "fused" else blocked_attention
        output = compute(choice.LIMITS, inputs)
    return output.to(query.dtype)


def attention_weights(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[torch.Tensor, "B H Q K"]:
    """The weights that `attention` gives to every key, before dropout: [B, H, Q, K] in the dtype of query (ATT-14)."""
    checks.attention(
        query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks, empty_rows=empty_rows
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask, dtype = checked_mask(mask, Q, K, B, H, query.device), query.dtype
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    weights, _ = softmax(scores, allowed, sinks)
    weights, _ = fill_empty_rows(weights, allowed, empty_rows)
    return weights.to(dtype)


def attention_logsumexp(
    query: Float[torch.Tensor, "B H Q D"],
    key: Float[torch.Tensor, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[torch.Tensor, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "H"] | None = None,
) -> Float[torch.Tensor, "B H Q"]:
    """log of the sum of exp(scores) over the allowed keys, and of exp(sink) if there is one: [B, H, Q] (ATT-14).

    In the dtype used inside: float32, or float64 for float64.
    """
    checks.attention(query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H, query.device)
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    _, logsumexp = softmax(scores, allowed, sinks)
    return logsumexp


def merge_attention(
    outputs: Sequence[Float[torch.Tensor, "B H Q V"]], logsumexps: Sequence[Float[torch.Tensor, "B H Q"]]
) -> tuple[Float[torch.Tensor, "B H Q V"], Float[torch.Tensor, "B H Q"]]:
    """Attention over all keys, from its results over disjoint sets of them (ATT-14)."""
    checks.merge(outputs, logsumexps)
    parts = torch.stack([widen(output) for output in outputs], dim=-2)
    scores = torch.stack([widen(logsumexp) for logsumexp in logsumexps], dim=-1)
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -torch.inf
    weights, logsumexp = softmax(torch.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return output.to(outputs[0].dtype), logsumexp
