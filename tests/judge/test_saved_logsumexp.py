"""A backward pass that takes the weights from one log-sum-exp for each row, as FlashAttention-2 does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from conformance import Report, check
from tests.support.helpers import SMALL

Function = Callable[..., Any]
BLOCK = 16


class Design(NamedTuple):
    """The kernel's steps that a planted fault may replace.

    kept: what the backward pass gets of (maximum, sum, sinks), each [B, H, Q, 1]. weight: exp(score - log-sum-exp).
    """

    kept: Callable[[Any, Any, Any], Any] = lambda maximum, total, sinks: maximum + torch.log(total)
    weight: Callable[[Any, Any], Any] = lambda scores, log: torch.exp(scores - log)


def scores_of(query: Any, key: Any, bias: Any, allowed: Any, scale: float) -> Any:
    """[B, H, Q, K], with -inf for forbidden pairs."""
    scores = query @ key.mT * scale
    return (scores if bias is None else scores + bias).masked_fill(~allowed, -torch.inf)


HONEST = Design()


class Flash(torch.autograd.Function):
    """All arrays in float32; keys and values have one head for each group of query heads. sinks: [1, H, 1, 1]."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, sinks: Any, allowed: Any, *options: Any) -> Any:
        scale, design = options
        share = query.shape[1] // max(key.shape[1], 1)
        k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        scores = scores_of(query, k, bias, allowed, scale)
        maximum = query.new_full((*query.shape[:3], 1), -torch.inf) if sinks is None else sinks.expand_as(query[..., :1])
        total = torch.zeros_like(maximum) if sinks is None else torch.ones_like(maximum)
        output = query.new_zeros(*query.shape[:3], v.shape[-1])
        for part, values in zip(scores.split(BLOCK, -1), v.split(BLOCK, -2), strict=True):
            highest = torch.maximum(maximum, part.amax(-1, keepdim=True))
            around = highest.masked_fill(highest == -torch.inf, 0)
            exponentials, factor = torch.exp(part - around), torch.exp(maximum - around)
            total = total * factor + exponentials.sum(-1, keepdim=True)
            output = output * factor + exponentials @ values
            maximum = highest
        output = output / total.masked_fill(total == 0, 1)
        log = design.kept(maximum, total, sinks).masked_fill(total == 0, 0)
        ctx.save_for_backward(query, key, value, bias, sinks, allowed, output, log)
        ctx.options = options
        return output

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        query, key, value, bias, sinks, allowed, output, log = ctx.saved_tensors
        scale, design = ctx.options
        groups, share = key.shape[1], query.shape[1] // max(key.shape[1], 1)
        k, v = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        mean = (bar * output).sum(-1, keepdim=True)
        query_bar, of_keys, of_values, of_scores = torch.zeros_like(query), [], [], []
        for i in range(0, k.shape[2], BLOCK):
            block = slice(i, i + BLOCK)
            local = None if bias is None else bias[..., block]
            scores = scores_of(query, k[:, :, block], local, allowed[..., block], scale)
            weights = design.weight(scores, log).masked_fill(~allowed[..., block], 0)
            scores_bar = weights * (bar @ v[:, :, block].mT - mean)
            query_bar = query_bar + scores_bar @ k[:, :, block] * scale
            of_keys.append(scores_bar.mT @ query * scale)
            of_values.append(weights.mT @ bar)
            of_scores.append(scores_bar)

        def by_group(parts: list[Any]) -> Any:
            return torch.cat(parts, -2).unflatten(1, (groups, share)).sum(2)

        bias_bar = None if bias is None else torch.cat(of_scores, -1).sum_to_size(bias.shape)
        sinks_bar = None if sinks is None else (-design.weight(sinks, log) * mean).sum_to_size(sinks.shape)
        return query_bar, by_group(of_keys), by_group(of_values), bias_bar, sinks_bar, None, None, None


def kernel(design: Design = HONEST) -> Function:
    def flash(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, sinks: Any = None
    ) -> Any:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool) if mask is None else mask
        if bias is not None:
            bias = bias.float()
            allowed = allowed & (bias.detach() != -torch.inf)
            bias = bias.masked_fill(~allowed, 0)
            bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        sinks = None if sinks is None else sinks.float().reshape(1, -1, 1, 1)
        wide = (array.float() for array in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return Flash.apply(*wide, bias, sinks, allowed, scale, design).to(query.dtype)

    return flash


def judged(function: Function, rules: list[str], seed: int = 1, dtype: str = "float32", **conventions: str) -> Report:
    given: dict[str, Any] = {"arrays": "torch", "effort": "quick", "profile": "strict", "rules": rules, "seed": seed}
    given |= {"limits": SMALL | {"keys": 40, "queries": 40}, "conventions": {"isolation": "finite"} | conventions}
    return check(function, "attention", dtypes=[dtype], **given)
