"""Mixtures of experts, defined (rules MOE-1 to MOE-5; Shazeer et al., arXiv 1701.06538).

    logits  = router(x)                          one for each expert
    scores  = softmax(logits)                    or sigmoid(logits), or the logits themselves
    chosen  = the largest of scores + choice_bias
    weights = scale * scores of the chosen / their sum
    output  = sum over the chosen of weight * expert(x) + shared(x)

Groups of experts, of which some are chosen first, are those of DeepSeek-V2, arXiv 2405.04434, and DeepSeek-V3, arXiv
2412.19437; so is the bias that chooses and does not weigh.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference_numpy.dtypes import widen
from reference_numpy.feed_forward import feed_forward, gated_feed_forward, silu_steps
from reference_numpy.multi_head_attention import linear
from reference_numpy.tape import operation
from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts, Routing, checks
from specification.parameters import mapped

__all__ = ["mixture_of_experts", "route"]


def router_logits(x: Float[np.ndarray, "*tokens E"], router: Linear) -> Float[np.ndarray, "*tokens X"]:
    """x @ weight + bias, which stays in the compute dtype (MOE-1)."""
    logits = widen(x) @ widen(router.weight)
    return logits if router.bias is None else logits + widen(router.bias)


def softmax(logits: Float[np.ndarray, "*tokens X"]) -> Float[np.ndarray, "*tokens X"]:
    """exp(logit) / sum of exp(logits), with the maximum subtracted before anything else."""
    exponentials = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def expert_scores(logits: Float[np.ndarray, "*tokens X"], scoring: str) -> Float[np.ndarray, "*tokens X"]:
    """The scores of all experts, each of which a sigmoid makes by itself (MOE-1)."""
    if scoring == "softmax":
        return softmax(logits)
    return 1 / (1 + np.exp(-logits)) if scoring == "sigmoid" else logits


def largest(numbers: Float[np.ndarray, "*tokens X"], count: int) -> Integer[np.ndarray, "*tokens C"]:
    """Where the largest numbers stand, in ascending order; of equal ones those with the lower indices (MOE-2)."""
    order = np.argsort(-numbers, axis=-1, kind="stable")
    return np.sort(order[..., :count], axis=-1)


def choose_experts(
    preferences: Float[np.ndarray, "*tokens X"], chosen: int, groups: int, chosen_groups: int, group_score: str
) -> tuple[Integer[np.ndarray, "*tokens C"], Bool[np.ndarray, "*tokens 1"]]:
    """The experts with the largest preferences in the best groups, and where a NaN leaves no choice (MOE-2).

    Of a token with a NaN the first experts are chosen.
    """
    size = preferences.shape[-1] // groups
    grouped = preferences.reshape(*preferences.shape[:-1], groups, size)
    best = np.sort(grouped, axis=-1)[..., -2 if group_score == "two_largest" else -1 :]
    group_scores = np.sum(best, axis=-1)
    some = largest(group_scores, chosen_groups)
    candidates = np.take_along_axis(grouped, some[..., None], axis=-2)
    inside = largest(candidates.reshape(*some.shape[:-1], chosen_groups * size), chosen)
    indices = np.take_along_axis(some, inside // size, axis=-1) * size + inside % size
    spoiled = np.isnan(preferences).any(axis=-1, keepdims=True) | np.isnan(group_scores).any(axis=-1, keepdims=True)
    return np.where(spoiled, np.arange(chosen), indices), spoiled


def expert_weights(
    logits: Float[np.ndarray, "*tokens C"], scores: Float[np.ndarray, "*tokens C"], weighting: str
) -> Float[np.ndarray, "*tokens C"]:
    """The weights of the chosen experts, by their logits and scores; 0 where the scores sum to 0 (MOE-3)."""
    if weighting == "softmax":
        return softmax(logits)
    if weighting == "scores":
        return scores
    total = np.sum(scores, axis=-1, keepdims=True)
    return np.where(total == 0, 0, scores / total)


def route_by_logits(
    logits: Float[np.ndarray, "*tokens X"],
    choice_bias: Float[np.ndarray, "X"] | None,
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
    chosen_logits, chosen_scores = (np.take_along_axis(rows, indices, axis=-1) for rows in (logits, scores))
    weights = expert_weights(chosen_logits, chosen_scores, weighting) * float(scale)
    return Routing(indices, np.where(spoiled, np.nan, weights).astype(scores.dtype), scores)


@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def route(
    x: Float[np.ndarray, "... E"],
    router: Linear,
    *,
    chosen: int,
    scoring: str = "softmax",
    choice_bias: Float[np.ndarray, "X"] | None = None,
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


def spread(parts: Float[np.ndarray, "*tokens C"], indices: Integer[np.ndarray, "*tokens C"], experts: int) -> Any:
    """The parts of the chosen experts among those of all, with 0 for the others."""
    whole = np.zeros((*parts.shape[:-1], experts), parts.dtype)
    np.put_along_axis(whole, indices, parts, axis=-1)
    return whole


def taken_places(
    indices: Integer[np.ndarray, "N C"], experts: int, real: Bool[np.ndarray, "N"], capacity: int | None
) -> Bool[np.ndarray, "N X"]:
    """Which expert takes which token: those that chose it, up to its capacity the first of them (MOE-5)."""
    places = np.any(indices[:, :, None] == np.arange(experts), axis=1) & real[:, None]
    return places if capacity is None else places & (np.cumsum(places, axis=0) <= capacity)


def clamped_gate(gate: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """g * sigmoid(1.702 g) with g = min(gate, 7), and its limit 0 at -infinity. NaN stays NaN."""
    return silu_steps(1.702 * np.where(gate > 7, 7, gate)) / 1.702


def clamped_value(value: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The value between -7 and 7, and 1 more. NaN stays NaN."""
    return np.where(np.abs(value) > 7, np.copysign(7, value), value) + 1


def expert_network(
    parameters: FeedForward | GatedFeedForward, x: Float[np.ndarray, "N E"], activation: str
) -> Float[np.ndarray, "N E_out"]:
    """One feed-forward network, with GPT-OSS's activation too (MOE-4)."""
    if isinstance(parameters, FeedForward):
        return feed_forward(parameters, x, activation=activation)
    if activation != "clamped_swiglu":
        return gated_feed_forward(parameters, x, activation=activation)
    gate = clamped_gate(widen(linear(parameters.gate, x)))
    hidden = gate * clamped_value(widen(linear(parameters.inner, x)))
    return linear(parameters.outer, hidden.astype(x.dtype))


@operation
@np.errstate(all="ignore")
def mixture_of_experts(
    parameters: MixtureOfExperts,
    x: Float[np.ndarray, "... E"],
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
    token_mask: Bool[np.ndarray, "..."] | None = None,
) -> Float[np.ndarray, "... E_out"]:
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
    real = np.ones(count, bool) if token_mask is None else token_mask.reshape(count)
    tokens = np.where(real[:, None], x.reshape(count, x.shape[-1]), x.dtype.type(0))
    logits = np.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, _ = route_by_logits(logits, choice_bias, **options)
    weights = spread(weights, indices, X)
    places = taken_places(indices, X, real, capacity)
    output = np.zeros((count, experts.outer.weight.shape[-1]), weights.dtype)
    for expert in range(X):
        rows = np.flatnonzero(places[:, expert])
        if rows.size > 0:
            own = mapped(lambda stack, expert=expert: stack[expert], experts)
            result = expert_network(own, tokens[rows], activation)
            output[rows] += weights[rows, expert, None] * widen(result)
    if shared is not None:
        output = output + widen(expert_network(shared, tokens, activation))
    output = np.where(real[:, None], output, 0)
    return output.astype(x.dtype).reshape(*x.shape[:-1], output.shape[-1])
