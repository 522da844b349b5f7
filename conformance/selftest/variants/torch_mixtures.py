"""Mixtures of experts in PyTorch, in other ways than the definition's: each over a routing of its own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from conformance.cases.declaration import declare
from conformance.selftest.variants.torch_layers import project
from specification.parameters import Linear, mapped
from torch_impl.dtypes import widen
from torch_impl.experts import expert_network, route_by_logits, taken_places
from torch_impl.latent_attention import latent_attention

if TYPE_CHECKING:
    from specification.parameters import MixtureOfExperts

Combine = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, str], Any]
"""(experts, tokens [N, E], indices [N, C], weights [N, C], taken [N, C], activation) -> [N, E_out]."""


def mixture_by(
    combine: Combine, name: str, logits_of: Callable[[torch.Tensor, Linear], Any] | None = None, **declared: Any
) -> Callable[..., Any]:
    """A mixture around a way to add up its experts.

    logits_of: how the router's logits are computed, in the compute dtype unless it is given. declared: as in `declare`.
    """

    @declare(**declared)
    def mixture_of_experts(
        parameters: MixtureOfExperts,
        x: torch.Tensor,
        *,
        chosen: int,
        scoring: str = "softmax",
        groups: int = 1,
        chosen_groups: int = 1,
        group_score: str = "two_largest",
        weighting: str = "normalized",
        scale: float = 1.0,
        activation: str = "silu",
        capacity: int | None = None,
        token_mask: torch.Tensor | None = None,
    ) -> Any:
        router, experts, choice_bias, shared = parameters
        X, count = router.weight.shape[1], x.shape[:-1].numel()
        real = torch.ones(count, dtype=torch.bool) if token_mask is None else token_mask.reshape(count)
        tokens = torch.where(real[:, None], x.reshape(count, x.shape[-1]), 0)
        logits = (logits_of or wide_logits)(tokens, router)
        indices, weights, _ = route_by_logits(
            logits, choice_bias, chosen=chosen, scoring=scoring, groups=groups, chosen_groups=chosen_groups,
            group_score=group_score, weighting=weighting, scale=scale,
        )  # fmt: skip
        taken = torch.gather(taken_places(indices, X, real, capacity), 1, indices)
        output = combine(experts, tokens, indices, torch.where(taken, weights, 0), taken, activation)
        if shared is not None:
            output = output + widen(expert_network(shared, tokens, activation))
        output = torch.where(real[:, None], output, 0)
        return output.to(x.dtype).reshape(*x.shape[:-1], output.shape[-1])

    mixture_of_experts.__qualname__ = mixture_of_experts.__name__ = name
    return mixture_of_experts


def wide_logits(tokens: torch.Tensor, router: Linear) -> Any:
    return project(mapped(widen, router), widen(tokens))


def rounded_logits(tokens: torch.Tensor, router: Linear) -> Any:
    """Logits in the dtype of the inputs, as those of most models of transformers."""
    return widen(project(router, tokens))


def sort_tokens(
    experts: Any, tokens: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, taken: torch.Tensor, act: str
) -> Any:
    """Pairs of tokens and experts sorted by expert; what each expert makes of its own is put back and summed."""
    count, chosen = indices.shape
    order = torch.argsort(torch.where(taken, indices, experts.outer.weight.shape[0]).reshape(-1), stable=True)
    order = order[: int(taken.sum())]
    rows, of_rows = order // chosen, indices.reshape(-1)[order]
    pairs = widen(tokens)[rows].to(tokens.dtype)
    results = [torch.zeros((0, experts.outer.weight.shape[-1]))]
    for expert in of_rows.unique().tolist():
        own = mapped(lambda stack, e=expert: stack[e], experts)
        results.append(widen(expert_network(own, pairs[of_rows == expert], act)))
    parts = weights.reshape(-1)[order, None] * torch.cat([part.to(weights.dtype) for part in results])
    return torch.zeros((count, parts.shape[-1]), dtype=weights.dtype).index_add(0, rows, parts)


def dispatch(
    experts: Any, tokens: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, taken: torch.Tensor, act: str
) -> Any:
    """One-hot places [N, S] in the buffer of each expert: sums over them bring tokens there, and results back."""
    output = torch.zeros((len(tokens), experts.outer.weight.shape[-1]), dtype=weights.dtype)
    for own, places, weight in split_experts(experts, indices, weights, taken):
        position = torch.cumsum(places, dim=0) - 1
        one_hot = (places & (position == torch.arange(max(int(places.sum()), 1))))[..., None]
        inputs = torch.where(one_hot, widen(tokens)[:, None], 0).sum(dim=0).to(tokens.dtype)
        results = widen(expert_network(own, inputs, act))
        output = output + torch.where(one_hot, weight[:, None] * results, 0).sum(dim=1)
    return output


def run_all(
    experts: Any, tokens: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, taken: torch.Tensor, act: str
) -> Any:
    """Every expert sees every token, as zeros where it does not take it; added up from the last expert to the first."""
    parts = []
    for own, places, weight in split_experts(experts, indices, weights, taken):
        result = widen(expert_network(own, torch.where(places, widen(tokens), 0).to(tokens.dtype), act))
        parts.append(torch.where(places, weight, 0) * torch.where(places, result, 0))
    return sum(reversed(parts))


def split_experts(experts: Any, indices: torch.Tensor, weights: torch.Tensor, taken: torch.Tensor) -> Iterator[Any]:
    """Of each expert its parameters, zeros if it takes nothing, the tokens that it takes [N, 1], and their weights."""
    for expert in range(experts.outer.weight.shape[0]):
        chosen = taken & (indices == expert)
        places = chosen.any(dim=1, keepdim=True)
        some = places.any()
        own = mapped(lambda stack, e=expert, some=some: torch.where(some, stack[e], 0), experts)
        yield own, places, torch.where(chosen, weights, 0).sum(dim=1, keepdim=True)


sorted_tokens = mixture_by(sort_tokens, "sorted_tokens")
one_hot_buffers = mixture_by(dispatch, "one_hot_buffers")
dense_experts = mixture_by(run_all, "dense_experts")
rounded_router = mixture_by(sort_tokens, "rounded_router", rounded_logits, conventions={"scores": "inputs"})


@wraps(latent_attention)
def absorbed_attention(*arguments: Any, **options: Any) -> Any:
    """Latent attention without keys and values of heads: queries are multiplied into the space of the latents."""
    return latent_attention(*arguments, **(options | {"absorbed": True}))
