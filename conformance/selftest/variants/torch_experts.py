"""Routers and mixtures of experts in PyTorch, in other ways than the definition's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from specification.routing import Routing
from torch_impl.dtypes import widen
from torch_impl.experts import choose_experts, clamped_gate, clamped_value, route, router_logits, taken_places
from torch_impl.feed_forward import ACTIVATIONS

if TYPE_CHECKING:
    from specification.parameters import Linear, MixtureOfExperts


def route_by_functional(
    x: torch.Tensor,
    router: Linear,
    *,
    chosen: int,
    scoring: str = "softmax",
    choice_bias: torch.Tensor | None = None,
    groups: int = 1,
    chosen_groups: int = 1,
    group_score: str = "two_largest",
    weighting: str = "normalized",
    scale: float = 1.0,
) -> Routing:
    """By PyTorch's own softmax, with the scale before the quotient, and pairs in the order of their scores."""
    logits = router_logits(x, router)
    scores = {"softmax": lambda y: functional.softmax(y, -1), "sigmoid": torch.sigmoid}.get(scoring, lambda y: y)(
        logits
    )
    preferences = (scores if choice_bias is None else scores + widen(choice_bias)).detach()
    indices, spoiled = choose_experts(preferences, chosen, groups, chosen_groups, group_score)
    order = torch.argsort(preferences.gather(-1, indices), dim=-1, descending=True)
    indices = indices.gather(-1, order)
    weights = scores.gather(-1, indices)
    if weighting == "softmax":
        weights = scale * functional.softmax(logits.gather(-1, indices), -1)
    elif weighting == "normalized":
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total == 0, 0, scale * weights / torch.where(total == 0, 1, total))
    else:
        weights = scale * weights
    return Routing(indices, torch.where(spoiled, torch.nan, weights), scores)


def mixture_by_gathering(
    parameters: MixtureOfExperts,
    x: torch.Tensor,
    *,
    activation: str = "silu",
    capacity: int | None = None,
    token_mask: torch.Tensor | None = None,
    chosen: int,
    scoring: str = "softmax",
    groups: int = 1,
    chosen_groups: int = 1,
    group_score: str = "two_largest",
    weighting: str = "normalized",
    scale: float = 1.0,
) -> Any:
    """Each token with copies of its experts' parameters, in one batched product; the shared expert comes first."""
    router, experts, choice_bias, shared = parameters
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if token_mask is None else token_mask
    real, lead = real.flatten(), x.shape[:-1]
    tokens = torch.where(real[:, None], x.reshape(len(real), x.shape[-1]), 0)
    indices, weights, _ = route(
        tokens, router, chosen=chosen, scoring=scoring, choice_bias=choice_bias, groups=groups,
        chosen_groups=chosen_groups, group_score=group_score, weighting=weighting, scale=scale,
    )  # fmt: skip
    places = taken_places(indices, router.weight.shape[1], real, capacity).gather(-1, indices)

    def gather(side: Linear) -> tuple[torch.Tensor, Any]:
        """The parameters of each pair, 0 for one that computes nothing."""
        weight = torch.where(places[:, :, None, None], widen(side.weight)[indices], 0)
        bias = None if side.bias is None else torch.where(places[:, :, None], widen(side.bias)[indices], 0)
        return weight, bias

    def network(rows: torch.Tensor, sides: dict[str, tuple[torch.Tensor, Any]]) -> torch.Tensor:
        def project(rows: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
            output = (rows[..., None, :] @ weight)[..., 0, :]
            return (output if bias is None else output + bias).to(x.dtype)

        inner = widen(project(rows, *sides["inner"]))
        if "gate" not in sides:
            hidden = ACTIVATIONS[activation](inner)
        elif activation == "clamped_swiglu":
            hidden = clamped_value(inner) * clamped_gate(widen(project(rows, *sides["gate"])))
        else:
            hidden = inner * ACTIVATIONS[activation](widen(project(rows, *sides["gate"])))
        return widen(project(widen(hidden.to(x.dtype)), *sides["outer"]))

    rows = widen(tokens)[:, None].expand(-1, chosen, -1)
    results = network(rows, {name: gather(side) for name, side in experts._asdict().items()})
    parts = torch.where(places[:, :, None], weights[:, :, None] * results, 0)
    if shared is not None:
        own = {name: (widen(side.weight), widen(side.bias)) for name, side in shared._asdict().items()}
        parts = torch.cat([network(widen(tokens)[:, None], own), parts], dim=1)
    return torch.where(real[:, None], parts.sum(1), 0).to(x.dtype).reshape(*lead, parts.shape[-1])
