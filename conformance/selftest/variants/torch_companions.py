"""The companions of attention in PyTorch, computed in other ways than the definition does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from conformance.selftest.variants.torch_pieces import (
    Problem,
    cap_scores,
    exponentials,
    finite,
    problem,
    row_maximum,
    sink_exponential,
)
from torch_impl.attention_steps import pair_products
from torch_impl.dtypes import widen

if TYPE_CHECKING:
    from specification.masks import Mask

LN2 = math.log(2.0)


def scores_and_logsumexp(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm in base 2, turned back at the end; -inf in rows without weight."""
    scores = cap_scores(pair_products(p.query, p.key, p.allowed) * p.scale, p)
    maximum = row_maximum(scores, p)
    total = exponentials(scores - maximum, p).sum(dim=-1, keepdim=True) + sink_exponential(p, maximum)
    empty = total == 0
    logsumexp = maximum + torch.log2(torch.where(empty, 1, total)) * LN2
    return scores, torch.where(empty, -torch.inf, logsumexp)


def companion_by(compute: Callable[[Problem], torch.Tensor], name: str) -> Callable[..., Any]:
    """`attention_weights` or `attention_logsumexp`."""

    def companion(
        query: torch.Tensor,
        key: torch.Tensor,
        *,
        mask: Mask | torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Any:
        return compute(problem(query, key, key, mask, bias, scale, softcap, sinks))

    companion.__qualname__ = companion.__name__ = name
    return companion


def compute_by_logsumexp(p: Problem) -> torch.Tensor:
    """exp(score - log-sum-exp), as blocked kernels compute the weights once more in their backward pass."""
    scores, logsumexp = scores_and_logsumexp(p)
    return exponentials(scores - finite(logsumexp), p).to(p.dtype)


logsumexp_base_2 = companion_by(lambda p: scores_and_logsumexp(p)[1][..., 0], "logsumexp_base_2")
weights_by_logsumexp = companion_by(compute_by_logsumexp, "weights_by_logsumexp")


def merge_in_sequence(outputs: Sequence[Any], logsumexps: Sequence[Any]) -> tuple[Any, Any]:
    """One part after the other is merged into what came before, weighed by exp(own log-sum-exp - common one)."""
    output = torch.zeros_like(widen(outputs[0]))
    logsumexp = torch.full_like(widen(logsumexps[0]), -torch.inf)
    for part, other in zip(outputs, logsumexps, strict=True):
        stacked = torch.stack([logsumexp, widen(other)])
        seen = stacked != -torch.inf
        # Without a part that has seen a key, the common log-sum-exp is -inf, and nothing depends on it.
        nothing = ~seen.any(dim=0)
        common = torch.logsumexp(torch.where(nothing, 0, stacked), dim=0)
        # The difference is replaced, not -inf within it: exp(-common) overflows, and its gradient would be 0 * inf.
        weights = torch.where(seen, torch.exp(torch.where(seen, stacked - common, 0)), 0)
        left, right = (
            torch.where(shown[..., None], x, 0) for shown, x in zip(seen, (output, widen(part)), strict=True)
        )
        output = weights[0, ..., None] * left + weights[1, ..., None] * right
        logsumexp = torch.where(nothing, -torch.inf, common)
    return output.to(outputs[0].dtype), logsumexp
