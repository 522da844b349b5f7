"""Attention over some of the keys, to be merged (ATT-14), and its gradients once all are merged, by every engine.

With output O and log-sum-exp L of all keys, what some of them add to the gradients follows from their scores alone:

    P = exp(S - L)      V_bar = P^T O_bar      S_bar = P (O_bar V^T - mean)      mean = rowsum(O_bar * O)

Nothing here may have size 0. A bias has rank 4. There are no sinks: a sink belongs to one part, or to none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_impl.attention_steps import (
    allowed_sum,
    attention_scores,
    pair_products,
    reference_attention,
    repeat_heads,
    visible_pairs,
)
from torch_impl.dtypes import widen
from torch_impl.engines import choice, fused, fused_gpu
from torch_impl.engines.blocked import Inputs, Options, blocked_forward, gradients_by_blocks, tensors_of
from torch_impl.engines.kernel_inputs import bounded, recomputed_alike


def forward_of_part(engine: str, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, H, Q, V] and log-sum-exp [B, H, Q] over these keys, in the dtype in which everything is computed."""
    if engine == "reference":
        return reference_attention(**inputs._asdict())
    found = kernels_for(inputs).forward_of_part(choice.LIMITS, inputs) if engine == "fused" else None
    return blocked_forward(choice.LIMITS, inputs) if found is None else found


class Results(NamedTuple):
    """What some queries have over all keys."""

    output: torch.Tensor
    logsumexp: torch.Tensor
    mean: torch.Tensor  # rowsum(cotangent * output)
    cotangent: torch.Tensor


def gradients_of_part(engine: str, inputs: Inputs, results: Results, wanted: Sequence[bool]) -> list[Any]:
    """What these keys add to the gradients of query, key, value, bias and sinks; None for those not wanted.

    The gradients are not rounded.
    """
    options, tensors = (inputs.mask, inputs.scale, inputs.softcap), tensors_of(inputs)
    output, logsumexp, mean, cotangent = results
    if engine == "fused" and within_kernels(inputs, results):
        found = kernels_for(inputs).gradients_of_part(choice.LIMITS, inputs, output, logsumexp, cotangent)
        if found is not None:
            return [gradient if want else None for gradient, want in zip((*found, None, None), wanted, strict=True)]
    rows = (logsumexp, mean, cotangent)
    if engine == "reference":
        return gradients_from_logsumexp(options, [widen(tensor) for tensor in tensors], *rows, wanted)
    return gradients_by_blocks(choice.LIMITS, options, tensors, rows, wanted, gradients_from_logsumexp)


def kernels_for(inputs: Inputs) -> Any:
    return fused_gpu if inputs.query.is_cuda else fused


def within_kernels(inputs: Inputs, results: Results) -> bool:
    """Whether kernels compute the gradients rightly.

    They multiply what is forbidden by 0, so a row that other keys made NaN would reach it.
    """
    usual = bounded(results.cotangent, inputs.value) and recomputed_alike(inputs)
    return usual and fused.finite(results.output) and bool((results.logsumexp < torch.inf).all())


def gradients_from_logsumexp(
    options: Options,
    tensors: Sequence[Any],
    logsumexp: torch.Tensor,
    mean: torch.Tensor,
    cotangent: torch.Tensor,
    wanted: Sequence[bool],
) -> list[Any]:
    """The formula above, for widened tensors."""
    mask, scale, softcap = options
    with torch.enable_grad():
        leaves: list[Any] = [
            None if t is None else t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)
        ]
        query, key, value, bias, _ = leaves
        (_, H, Q, _), K = query.shape, key.shape[2]
        key, value = repeat_heads(key, H), repeat_heads(value, H)
        allowed, bias = visible_pairs(mask, bias, Q, K, query.device)
        scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    with torch.no_grad():
        # A row without keys has a log-sum-exp of -inf; so has one whose scores are all -inf, with weights of 0.
        logsumexp = torch.where(logsumexp == -torch.inf, 0, logsumexp)[..., None]
        weights = torch.where(allowed, torch.exp(scores - logsumexp), 0)
        cotangent = widen(cotangent)
        weights_bar = pair_products(cotangent, value, allowed)
        scores_bar = torch.where(allowed, weights * (weights_bar - mean[..., None]), 0)
        value_bar = allowed_sum(weights.mT, cotangent, allowed.mT)
    # Autograd goes on from the scores: through the softcap, to heads that are shared and axes that are broadcast.
    chosen = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
    roots = [(root, bar) for root, bar in ((scores, scores_bar), (value, value_bar)) if root.requires_grad]
    found = iter(torch.autograd.grad([root for root, _ in roots], chosen, [bar for _, bar in roots]) if roots else ())
    return [next(found) if want else None for want in wanted]
