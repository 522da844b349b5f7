"""Mixtures of experts over several ranks in PyTorch (DIST-6), by `torch.distributed`.

Every rank holds tokens, and some consecutive experts. A token travels to the ranks that have experts which it chose
(Lepikhin et al., arXiv 2006.16668), and one sum comes back from each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch.autograd.function import once_differentiable

from specification import MixtureOfExperts, checks
from specification.checks.arguments import refuse
from specification.distributed import ranges_of_experts
from specification.dtypes import dtype_name
from specification.parameters import leaves, mapped
from torch_impl.distributed import SameOnRanks
from torch_impl.dtypes import widen
from torch_impl.experts import expert_network, route_by_logits, router_logits, sorted_sum, spread, taken_places
from torch_impl.ranks import Members, compare_calls, exchange, members_of

__all__ = ["mixture_of_experts"]


def mixture_of_experts(
    parameters: MixtureOfExperts,
    x: Float[torch.Tensor, "... E"],
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
    token_mask: Bool[torch.Tensor, "..."] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[torch.Tensor, "... E_out"]:
    """Compute `mixture_of_experts` for this rank's tokens, with experts that are spread over the ranks (DIST-6).

    Each rank routes its own tokens, and sends each of them once to every rank that has an expert which it chose, with
    the indices and weights of its C experts. The owner adds up its experts' results, each times its weight, and sends
    one sum back. The token's rank adds these sums in the order of ranks, and the shared network's result last. In the
    backward pass gradients take the same ways back.

    Let a rank send S tokens to others, where one that goes to two ranks counts twice, and compute for R tokens of
    others. It then sends so many bytes, in a dtype of n bytes, w = max(n, 4):

        forward     S (E n + C (w + 4)) + R E_out w, and 8 to each other rank
        backward    S E_out w + R (E + C) w

    Comparing the calls takes some more, and the backward pass one sum over ranks for each array of the router and of
    the shared network. Beside its own tokens and experts a rank holds the tokens that come to it.

    Args:
        parameters: As in `experts.mixture_of_experts`, but `experts` are this rank's, the next ones after those of the
            rank before; a rank may have none. The router, which has a column for each expert of all ranks, the choice
            bias and the shared network are the same on every rank.
        x: [..., E], this rank's tokens, as many as it has.
        chosen, scoring, groups, chosen_groups, group_score, weighting, scale, activation: As in
            `experts.mixture_of_experts`, and the same on every rank.
        capacity: How many tokens of all ranks an expert takes, the first in the order of ranks, and on each in the
            order of x; None for all.
        token_mask: [...], of this rank's tokens.
        group: The process group, None for the default one. Without any there is one rank.

    Returns:
        A new array [..., E_out] in the dtype of x, for this rank's tokens. It can be differentiated once; router and
        shared network have the gradient of the whole on each rank, the sum over ranks.

    Raises:
        TypeError: Dtypes or structures that are not as described, on any rank.
        ValueError: Sizes, names or numbers that are not as described, on any rank, or calls that differ.
    """
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    others = {"activation": activation, "capacity": capacity}
    ranks = members_of(group)
    calls = compare_calls(ranks, lambda: describe_call(parameters, x, token_mask, options, others))
    router, experts, choice_bias, shared = parameters
    count, X = math.prod(x.shape[:-1]), router.weight.shape[1]
    ranges = ranges_of_experts([experts_of_rank for _, experts_of_rank in calls], X)
    router, shared = mapped(lambda array: SameOnRanks.apply(ranks, array), (router, shared))
    real = torch.ones(count, dtype=torch.bool, device=x.device) if token_mask is None else token_mask.reshape(count)
    tokens = torch.where(real[:, None], widen(x).reshape(count, x.shape[-1]), 0)
    logits = torch.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, _ = route_by_logits(logits, choice_bias, **options)

    # A row for each token and each rank that it goes to, by rank, then by token.
    places = taken_places(indices, X, real, capacity).cpu().numpy()
    wanted = np.stack([places[:, first:stop].any(axis=1) for first, stop in ranges])
    sent = wanted.sum(axis=1).tolist()
    rows = torch.as_tensor(np.nonzero(wanted)[1], device=x.device)
    numbers = [torch.tensor([number], device=x.device) for number in sent]
    received = [int(number) for number in exchange(ranks, numbers, [(1,)] * ranks.ranks)]
    there, back = (ranks, sent, received), (ranks, received, sent)
    own_tokens = Exchange.apply(*there, x.dtype, tokens[rows])
    own_weights = Exchange.apply(*there, weights.dtype, weights[rows])
    own_indices = exchange_rows(*there, indices[rows].int()).long()

    own = slice(*ranges[ranks.rank])
    taken = torch.ones(len(own_tokens), dtype=torch.bool, device=x.device)
    own_places = taken_places(own_indices, X, taken, capacity)[:, own].cpu().numpy()
    own_weights = spread(own_weights, own_indices, X)[:, own]
    sums = sorted_sum(experts, own_tokens, own_weights, own_places, activation, x.dtype)
    sums = Exchange.apply(*back, sums.dtype, sums)
    output = torch.zeros((count, sums.shape[-1]), dtype=sums.dtype, device=x.device)
    for of_rank, part in zip(rows.split(sent), sums.split(sent), strict=True):
        output.index_add_(0, of_rank, part)  # no token is there twice, so that nothing but the ranks orders the sum
    if shared is not None:
        output = output + widen(expert_network(shared, tokens.to(x.dtype), activation))
    output = torch.where(real[:, None], output, 0)
    return output.to(x.dtype).reshape(*x.shape[:-1], output.shape[-1])


def describe_call(
    parameters: MixtureOfExperts, x: torch.Tensor, token_mask: Any, options: dict[str, Any], others: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """What must be the same on every rank, by name, and how many experts this rank has."""
    checks.mixture_of_experts(parameters, x, token_mask=token_mask, **others, on_ranks=True)
    checks.route(x, parameters.router, parameters.choice_bias, **options)
    arrays = {name.removeprefix("."): array for name, array in leaves(parameters).items()}
    same: dict[str, Any] = {"the function": "mixture_of_experts", "parameters": ", ".join(arrays)}
    arrays["x"] = x
    same |= {name: repr(value) for name, value in (options | others).items()}
    for name, array in (arrays if token_mask is None else arrays | {"token_mask": token_mask}).items():
        if not isinstance(array, torch.Tensor):
            refuse(name, "be a torch.Tensor", type(array).__name__, TypeError)
    for name, array in arrays.items():
        start, ending = {"experts": (1, " of one expert"), "x": (-1, " of one token")}.get(name.split(".")[0], (0, ""))
        same[f"the shape of {name}{ending}"] = list(array.shape[start:])
        same[f"the dtype of {name}"] = dtype_name(array)
        same[f"whether {name} wants a gradient"] = array.requires_grad and torch.is_grad_enabled()
    return same, len(parameters.experts.outer.weight)


class Exchange(torch.autograd.Function):
    """The rows that every rank sends to this one, in exchange for so many of this rank's; their gradients go back.

    Rows travel in a dtype that holds them, and gradients in that in which everything is computed.
    """

    @staticmethod
    def forward(
        ctx: Any, ranks: Members, sent: list[int], received: list[int], dtype: torch.dtype, rows: torch.Tensor
    ) -> torch.Tensor:
        ctx.arguments = ranks, received, sent
        return exchange_rows(ranks, sent, received, rows.to(dtype)).to(rows.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        ranks, sent, received = ctx.arguments
        return None, None, None, None, exchange_rows(ranks, sent, received, cotangent)


def exchange_rows(ranks: Members, sent: Sequence[int], received: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
    """Send so many consecutive rows to each rank, and return those that come from each, rank by rank."""
    shapes = [(number, *rows.shape[1:]) for number in received]
    return torch.cat([*exchange(ranks, rows.split(sent), shapes)])
