"""Mixtures of experts in PyTorch (rules MOE-1 to MOE-5), as `reference_numpy/experts.py` defines them.

Tokens are sorted by expert, and each expert multiplies those that it takes. Where these cannot be read (see
`masks.readable`) it sees all tokens, with zeros in place of those that it does not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer

from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts, Routing, checks
from specification.parameters import mapped
from torch_impl.dtypes import GradientByHand, product, widen
from torch_impl.feed_forward import ACTIVATIONS, silu_steps
from torch_impl.masks import readable
from torch_impl.multi_head_attention import Product, linear

__all__ = ["mixture_of_experts", "route"]

RUN = 2**19
"""Numbers between two products that experts share before the next ones begin: 2 MB in float32."""


def router_logits(x: Float[torch.Tensor, "*tokens E"], router: Linear) -> Float[torch.Tensor, "*tokens X"]:
    """x @ weight + bias, which stays in the compute dtype (MOE-1)."""
    logits = Product.apply(widen(x), widen(router.weight))
    return logits if router.bias is None else logits + widen(router.bias)


def softmax(logits: Float[torch.Tensor, "*tokens X"]) -> Float[torch.Tensor, "*tokens X"]:
    """exp(logit) / sum of exp(logits); the maximum is a constant to the gradient."""
    exponentials = torch.exp(logits - torch.amax(logits, dim=-1, keepdim=True).detach())
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


def expert_scores(logits: Float[torch.Tensor, "*tokens X"], scoring: str) -> Float[torch.Tensor, "*tokens X"]:
    """The scores of all experts, each of which a sigmoid makes by itself (MOE-1)."""
    if scoring == "softmax":
        return softmax(logits)
    return torch.sigmoid(logits) if scoring == "sigmoid" else logits


def largest(numbers: Float[torch.Tensor, "*tokens X"], count: int) -> Integer[torch.Tensor, "*tokens C"]:
    """Where the largest numbers stand, in ascending order; of equal ones those with the lower indices (MOE-2).

    `torch.topk` says nothing of equal ones. 0 is added because a sort on CUDA tells 0 from -0.
    """
    order = torch.sort(numbers + 0, dim=-1, descending=True, stable=True).indices
    return torch.sort(order[..., :count], dim=-1).values


def choose_experts(
    preferences: Float[torch.Tensor, "*tokens X"], chosen: int, groups: int, chosen_groups: int, group_score: str
) -> tuple[Integer[torch.Tensor, "*tokens C"], Bool[torch.Tensor, "*tokens 1"]]:
    """The experts with the largest preferences in the best groups, and where a NaN leaves no choice (MOE-2).

    Of a token with a NaN the first experts are chosen.
    """
    size = preferences.shape[-1] // groups
    grouped = preferences.detach().reshape(*preferences.shape[:-1], groups, size)
    best = torch.sort(grouped, dim=-1).values[..., -2 if group_score == "two_largest" else -1 :]
    group_scores = torch.sum(best, dim=-1)
    some = largest(group_scores, chosen_groups)
    candidates = torch.gather(grouped, -2, some[..., None].expand(*some.shape, size))
    inside = largest(candidates.reshape(*some.shape[:-1], chosen_groups * size), chosen)
    indices = torch.gather(some, -1, inside // size) * size + inside % size
    spoiled = torch.isnan(preferences).any(-1, keepdim=True) | torch.isnan(group_scores).any(-1, keepdim=True)
    return torch.where(spoiled, torch.arange(chosen, device=indices.device), indices), spoiled


def expert_weights(
    logits: Float[torch.Tensor, "*tokens C"], scores: Float[torch.Tensor, "*tokens C"], weighting: str
) -> Float[torch.Tensor, "*tokens C"]:
    """The weights of the chosen experts, by their logits and scores; 0 where the scores sum to 0 (MOE-3)."""
    if weighting == "softmax":
        return softmax(logits)
    if weighting == "scores":
        return scores
    total = torch.sum(scores, dim=-1, keepdim=True)
    return torch.where(total == 0, 0, scores / torch.where(total == 0, 1, total))


def route_by_logits(
    logits: Float[torch.Tensor, "*tokens X"],
    choice_bias: Float[torch.Tensor, "X"] | None,
    *,
    chosen: int,
    scoring: str,
    groups: int,
    chosen_groups: int,
    group_score: str,
    weighting: str,
    scale: float,
) -> Routing:
    """What `route` makes of the logits."""
    scores = expert_scores(logits, scoring)
    preferences = scores if choice_bias is None else scores + widen(choice_bias)
    indices, spoiled = choose_experts(preferences, chosen, groups, chosen_groups, group_score)
    chosen_logits, chosen_scores = (torch.gather(rows, -1, indices) for rows in (logits, scores))
    weights = expert_weights(chosen_logits, chosen_scores, weighting) * float(scale)
    # A product, so that the NaN reaches the gradient too.
    return Routing(indices, weights * torch.where(spoiled, math.nan, 1.0).to(weights.dtype), scores)


def route(
    x: Float[torch.Tensor, "... E"],
    router: Linear,
    *,
    chosen: int,
    scoring: str = "softmax",
    choice_bias: Float[torch.Tensor, "X"] | None = None,
    groups: int = 1,
    chosen_groups: int = 1,
    group_score: str = "two_largest",
    weighting: str = "normalized",
    scale: float = 1.0,
) -> Routing:
    """Choose experts for every token on its own, and weigh them (MOE-1 to MOE-3).

    Args:
        x: [..., E], in float16, bfloat16, float32 or float64.
        router: A projection in the dtype of x, with a weight [E, X].
        chosen: How many of the X experts are chosen for a token.
        scoring: What makes scores of logits: "softmax" over all experts, "sigmoid", or "none".
        choice_bias: [X], in the dtype of x or the compute dtype. It is added to the scores that experts are chosen by,
            and to no weight.
        groups: The number of groups of consecutive experts, all of one size.
        chosen_groups: How many groups are chosen for a token. No expert of another one is.
        group_score: What groups are chosen by: the sum of a group's "two_largest" entries of scores + choice_bias, or
            its "largest" one.
        weighting: What the weights of the chosen experts are: their "scores", these "normalized" to the sum 1, or the
            "softmax" of their logits.
        scale: What the weights are multiplied by; finite.

    Returns:
        New arrays: indices [..., chosen], int64, in ascending order; weights [..., chosen] and scores [..., X] in the
        compute dtype. Where any score is NaN, so are the token's weights, and its indices count from 0.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes, names or numbers that are not as described.
    """
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.route(x, router, choice_bias, **options)
    return route_by_logits(router_logits(x, router), choice_bias, **options)


def spread(parts: Float[torch.Tensor, "*tokens C"], indices: Integer[torch.Tensor, "*tokens C"], experts: int) -> Any:
    """The parts of the chosen experts among those of all, with 0 for the others."""
    whole = torch.zeros((*parts.shape[:-1], experts), dtype=parts.dtype, device=parts.device)
    return torch.scatter(whole, -1, indices, parts)


def taken_places(
    indices: Integer[torch.Tensor, "N C"], experts: int, real: Bool[torch.Tensor, "N"], capacity: int | None
) -> Bool[torch.Tensor, "N X"]:
    """Which expert takes which token: those that chose it, up to its capacity the first of them (MOE-5)."""
    places = torch.any(indices[:, :, None] == torch.arange(experts, device=indices.device), dim=1) & real[:, None]
    return places if capacity is None else places & (torch.cumsum(places, dim=0) <= capacity)


def clamped_gate(gate: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """g * sigmoid(1.702 g) with g = min(gate, 7), and its limit 0 at -infinity. NaN stays NaN."""
    return silu_steps(1.702 * torch.where(gate > 7, 7, gate)) / 1.702


def clamped_value(value: Float[torch.Tensor, "..."]) -> Float[torch.Tensor, "..."]:
    """The value between -7 and 7, and 1 more. NaN stays NaN."""
    return torch.where(torch.abs(value) > 7, 7 * torch.sign(value).detach(), value) + 1


def expert_network(
    parameters: FeedForward | GatedFeedForward,
    x: Float[torch.Tensor, "N E"],
    activation: str,
    project: Callable[[Linear, Any], Any] = linear,
) -> Float[torch.Tensor, "N E_out"]:
    """One feed-forward network, with GPT-OSS's activation too (MOE-4)."""
    hidden = widen(project(parameters.inner, x))
    if isinstance(parameters, FeedForward):
        hidden = ACTIVATIONS[activation](hidden)
    elif activation == "clamped_swiglu":
        hidden = clamped_gate(widen(project(parameters.gate, x))) * clamped_value(hidden)
    else:
        hidden = ACTIVATIONS[activation](widen(project(parameters.gate, x))) * hidden
    return project(parameters.outer, hidden.to(x.dtype))


class Groups(NamedTuple):
    """Where the rows of each expert stand among rows that are sorted by expert."""

    ends: list[int]
    """One after the last row of each expert."""
    spans: list[tuple[int, int, int]]
    """An expert that has rows, its first row, and the one after its last."""


def find_groups(counts: np.ndarray) -> Groups:
    """The groups of experts that have so many rows each."""
    ends = np.cumsum(counts)
    some = np.flatnonzero(counts)
    spans = zip(some.tolist(), (ends - counts)[some].tolist(), ends[some].tolist(), strict=True)
    return Groups(ends.tolist(), [*spans])


def fits_grouped_mm(rows: torch.Tensor, stack: torch.Tensor) -> bool:
    """Whether `torch.nn.functional.grouped_mm` takes them: in float32 on a CPU, with strides of whole 16 bytes."""
    return all(
        array.device.type == "cpu"
        and array.dtype == torch.float32
        and array.shape[-1] > 1
        and array.shape[-2] > 1
        and sorted(array.stride())[0] == 1
        and all(stride > 1 and stride % 4 == 0 for stride in sorted(array.stride())[1:])
        for array in (rows, stack)
    )


class Grouped(GradientByHand):
    """An operation on rows that are sorted by expert: the last argument says where those of each stand."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.groups = inputs
        ctx.save_for_backward(*tensors)


class GroupedProduct(Grouped):
    """rows @ stack[expert], in the dtype of the rows. Nothing reads an expert without rows."""

    @staticmethod
    def forward(rows: torch.Tensor, stack: torch.Tensor, groups: Groups) -> Any:
        if fits_grouped_mm(rows, stack):
            return torch.nn.functional.grouped_mm(rows, stack, offs=torch.tensor(groups.ends, dtype=torch.int32))
        with torch.autocast(rows.device.type, enabled=False):
            parts = [rows[start:end] @ stack[e].to(rows.dtype) for e, start, end in groups.spans]
        return parts[0] if len(parts) == 1 else torch.cat([rows.new_empty((0, stack.shape[-1])), *parts])

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, Any, None]:
        rows, stack = ctx.saved_tensors
        of_rows = GroupedProduct.apply(cotangent, stack.mT, ctx.groups)
        return of_rows, GroupedOuter.apply(rows, cotangent, ctx.groups).to(stack.dtype), None


class GroupedOuter(Grouped):
    """left.mT @ right for the rows of each expert: 0 where it has none."""

    @staticmethod
    def forward(left: torch.Tensor, right: torch.Tensor, groups: Groups) -> Any:
        stack = left.new_zeros((len(groups.ends), left.shape[-1], right.shape[-1]))
        for e, start, end in groups.spans:
            stack[e] = product(left[start:end].mT, right[start:end])
        return stack

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, Any, None]:
        left, right = ctx.saved_tensors
        of_left = GroupedProduct.apply(right, cotangent.mT, ctx.groups)
        return of_left, GroupedProduct.apply(left, cotangent, ctx.groups), None


def grouped_network(
    experts: FeedForward | GatedFeedForward, rows: Float[torch.Tensor, "S E"], counts: np.ndarray, activation: str
) -> Float[torch.Tensor, "S E_out"]:
    """The networks of several experts, each for as many of the rows as `counts` says."""
    groups = find_groups(counts)

    def project(stack: Linear, x: torch.Tensor) -> torch.Tensor:
        output = GroupedProduct.apply(widen(x), stack.weight, groups)
        if stack.bias is not None:
            output = output + widen(stack.bias)[np.repeat(np.arange(len(counts)), counts)]
        return output.to(x.dtype)

    return expert_network(experts, rows, activation, project)


def run_lengths(counts: np.ndarray, width: int) -> list[int]:
    """How many consecutive experts share a run of rows: so many that what is between two products stays in a cache."""
    lengths, rows = [0], 0
    for count in counts.tolist():
        if rows > 0 and (rows + count) * width > RUN:
            lengths.append(0)
            rows = 0
        lengths[-1] += 1
        rows += count
    return lengths


def sorted_sum(
    experts: FeedForward | GatedFeedForward,
    tokens: Float[torch.Tensor, "N E"],
    weights: Float[torch.Tensor, "N X"],
    places: Bool[np.ndarray, "N X"],
    activation: str,
    dtype: torch.dtype,
) -> Float[torch.Tensor, "N E_out"]:
    """The results of the experts for the tokens that they take, times the weights, by ascending index (MOE-4).

    Each token adds up rows of its own, so that no order of threads decides its sum.
    """
    device = tokens.device
    of_rows, token_of_rows = np.nonzero(places.T)
    expert_rows, token_rows = (torch.as_tensor(numbers, device=device) for numbers in (of_rows, token_of_rows))
    counts = places.sum(axis=0)
    sizes = run_lengths(counts, experts.outer.weight.shape[1])
    runs = mapped(lambda stack: torch.split(stack, sizes), experts)
    of_runs = np.split(counts, np.cumsum(sizes)[:-1])
    lengths = [int(one.sum()) for one in of_runs]
    rows_of_runs = torch.split(tokens[token_rows].to(dtype), lengths)
    weights_of_runs = torch.split(weights[token_rows, expert_rows, None], lengths)
    parts = []
    for i, (rows, weight, one) in enumerate(zip(rows_of_runs, weights_of_runs, of_runs, strict=True)):
        own = mapped(lambda _, stacks, i=i: stacks[i], experts, runs)
        parts.append(weight * widen(grouped_network(own, rows, one, activation)))
    # Where the parts of a token stand; a token that fewer experts take has the row of zeros in place of the others.
    taken = places.sum(axis=1)
    found = np.full((len(tokens), taken.max(initial=1)), len(token_of_rows))
    found[np.arange(found.shape[1]) < taken[:, None]] = np.argsort(token_of_rows, kind="stable")
    results = torch.cat([*parts, parts[0].new_zeros((1, parts[0].shape[-1]))])
    output = torch.zeros((len(tokens), results.shape[-1]), dtype=results.dtype, device=device)
    for part in results[torch.as_tensor(found.T.copy(), device=device)]:
        output = output + part
    return output


def masked_sum(
    experts: FeedForward | GatedFeedForward,
    tokens: Float[torch.Tensor, "N E"],
    weights: Float[torch.Tensor, "N X"],
    places: Bool[torch.Tensor, "N X"],
    activation: str,
    dtype: torch.dtype,
) -> Float[torch.Tensor, "N E_out"]:
    """The same without a look at the numbers.

    Whoever does not take part is 0 before and after: a gradient of 0 times NaN would be NaN.
    """
    output = torch.zeros((len(tokens), experts.outer.weight.shape[-1]), dtype=tokens.dtype, device=tokens.device)
    unbound = mapped(torch.unbind, experts)  # of which each has its gradient; `stack[expert]` would have the stack's
    for expert in range(places.shape[1]):
        taken = places[:, expert, None]
        own = mapped(lambda _, own, e=expert, taken=taken: torch.where(taken.any(), own[e], 0), experts, unbound)
        result = expert_network(own, torch.where(taken, tokens, 0).to(dtype), activation)
        output = output + torch.where(taken, weights[:, expert, None], 0) * torch.where(taken, widen(result), 0)
    return output


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
) -> Float[torch.Tensor, "... E_out"]:
    """Add up the chosen experts' results for every token, each times its weight, and the shared one's (MOE-4, MOE-5).

    Args:
        parameters: A router, a stack of networks, a choice bias and a shared network, or None for these two. All are
            in the dtype of x, the choice bias in that or the compute dtype.
        x: [..., E].
        chosen, scoring, groups, chosen_groups, group_score, weighting, scale: As in `route`.
        activation: Of the networks, as in `gated_feed_forward`. Gated ones may also have "clamped_swiglu":
            (up + 1) * gate * sigmoid(1.702 * gate), with gate = min(gate, 7), and up between -7 and 7.
        capacity: How many tokens an expert takes, the first in the order of x; None for all. Later ones go without
            it, and their other weights stay.
        token_mask: [...], True = a token. The others have the result 0, and take no place.

    Returns:
        A new array [..., E_out] in the dtype of x, to which every network and the sum round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes, names or numbers that are not as described.
    """
    checks.mixture_of_experts(parameters, x, activation, capacity, token_mask)
    router, experts, choice_bias, shared = parameters
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.route(x, router, choice_bias, **options)
    count, X = math.prod(x.shape[:-1]), router.weight.shape[1]
    real = torch.ones(count, dtype=torch.bool, device=x.device) if token_mask is None else token_mask.reshape(count)
    # Tokens are widened before experts take them, so that their gradients are added up in the wider dtype.
    tokens = torch.where(real[:, None], widen(x).reshape(count, x.shape[-1]), 0)
    logits = torch.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, _ = route_by_logits(logits, choice_bias, **options)
    weights = spread(weights, indices, X)
    places = taken_places(indices, X, real, capacity)
    readable_places = readable(places)
    if readable_places is None:
        output = masked_sum(experts, tokens, weights, places, activation, x.dtype)
    else:
        output = sorted_sum(experts, tokens, weights, readable_places, activation, x.dtype)
    if shared is not None:
        output = output + widen(expert_network(shared, tokens.to(x.dtype), activation))
    output = torch.where(real[:, None], output, 0)
    return output.to(x.dtype).reshape(*x.shape[:-1], output.shape[-1])
