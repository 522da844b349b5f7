"""Gradients of the operations in `experts.py`, by hand. The choice is a constant to them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.dtypes import widen
from reference_numpy.experts import (
    choose_experts,
    clamped_gate,
    clamped_value,
    expert_network,
    expert_scores,
    expert_weights,
    route_by_logits,
    router_logits,
    spread,
    taken_places,
)
from reference_numpy.feed_forward_vjp import FeedForwardGradients, feed_forward_vjp, gated_feed_forward_vjp, silu_slope
from reference_numpy.multi_head_attention import linear
from reference_numpy.multi_head_attention_vjp import linear_vjp
from reference_numpy.tape import gradient_of
from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts, checks
from specification.dtypes import compute_dtype_name, dtype_name
from specification.parameters import mapped

__all__ = ["MixtureOfExpertsGradients", "RouteGradients", "mixture_of_experts_vjp", "route_vjp"]


class RouteGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments; that of the choice bias is 0."""

    x: Any
    router: Linear
    choice_bias: Any


class MixtureOfExpertsGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments."""

    parameters: MixtureOfExperts
    x: Any


def softmax_gradient(weights: np.ndarray, cotangent: np.ndarray) -> Any:
    """weights * (cotangent - sum of weights * cotangent)."""
    return weights * (cotangent - np.sum(weights * cotangent, axis=-1, keepdims=True))


def logits_gradient(
    logits: Float[np.ndarray, "*tokens X"],
    choice_bias: Float[np.ndarray, "X"] | None,
    weights_cotangent: Float[np.ndarray, "*tokens C"],
    scores_cotangent: Float[np.ndarray, "*tokens X"],
    *,
    chosen: int,
    scoring: str,
    groups: int,
    chosen_groups: int,
    group_score: str,
    weighting: str,
    scale: float,
) -> Float[np.ndarray, "*tokens X"]:
    """The gradient of the logits, for `route_by_logits`."""
    scores = expert_scores(logits, scoring)
    preferences = scores if choice_bias is None else scores + widen(choice_bias)
    indices, spoiled = choose_experts(preferences, chosen, groups, chosen_groups, group_score)
    chosen_logits, chosen_scores = (np.take_along_axis(rows, indices, axis=-1) for rows in (logits, scores))
    weights = expert_weights(chosen_logits, chosen_scores, weighting)
    received = np.where(spoiled, np.nan, weights_cotangent * float(scale)).astype(scores.dtype)
    if weighting == "normalized":
        total = np.sum(chosen_scores, axis=-1, keepdims=True)
        shares = (received - np.sum(weights * received, axis=-1, keepdims=True)) / total
        received = np.where(total == 0, 0, shares)
    elif weighting == "softmax":
        received = softmax_gradient(weights, received)
    through_weights = spread(received, indices, scores.shape[-1])
    received = scores_cotangent if weighting == "softmax" else scores_cotangent + through_weights
    if scoring == "softmax":
        received = softmax_gradient(scores, received)
    elif scoring == "sigmoid":
        received = received * scores * (1 - scores)
    return received + through_weights if weighting == "softmax" else received


def router_gradients(
    x: Float[np.ndarray, "*tokens E"], router: Linear, cotangent: Float[np.ndarray, "*tokens X"]
) -> tuple[Float[np.ndarray, "*tokens E"], Linear]:
    """Gradients of x, in the compute dtype, and of the router."""
    rows, flat = (array.reshape(math.prod(x.shape[:-1]), array.shape[-1]) for array in (cotangent, widen(x)))
    weight = (flat.T @ rows).astype(router.weight.dtype)
    bias = None if router.bias is None else rows.sum(axis=0).astype(router.bias.dtype)
    return cotangent @ widen(router.weight).T, Linear(weight, bias)


@np.errstate(all="ignore")
def route_vjp(
    x: Float[np.ndarray, "... E"],
    router: Linear,
    weights_cotangent: Float[np.ndarray, "... C"],
    scores_cotangent: Float[np.ndarray, "... X"],
    *,
    chosen: int,
    scoring: str = "softmax",
    choice_bias: Float[np.ndarray, "X"] | None = None,
    groups: int = 1,
    chosen_groups: int = 1,
    group_score: str = "two_largest",
    weighting: str = "normalized",
    scale: float = 1.0,
) -> RouteGradients:
    """Compute the gradients of x and router; the choice is a constant (MOE-1 to MOE-3).

    Args:
        x, router: As in `route`.
        weights_cotangent, scores_cotangent: Gradients with respect to the weights and scores of `route`, in their
            shapes and dtypes.
        chosen, scoring, choice_bias, groups, chosen_groups, group_score, weighting, scale: As in `route`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `route`, and for a cotangent in another shape or dtype than its result.
    """
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.route(x, router, choice_bias, **options)
    wide = compute_dtype_name(dtype_name(x))
    checks.cotangent(weights_cotangent, (*x.shape[:-1], chosen), wide, "weights_cotangent")
    checks.cotangent(scores_cotangent, (*x.shape[:-1], router.weight.shape[1]), wide, "scores_cotangent")
    received = logits_gradient(router_logits(x, router), choice_bias, weights_cotangent, scores_cotangent, **options)
    x_gradient, router_gradient = router_gradients(x, router, received)
    bias_gradient = None if choice_bias is None else np.zeros_like(choice_bias)
    return RouteGradients(x_gradient.astype(x.dtype), router_gradient, bias_gradient)


def clamped_gate_vjp(gate: np.ndarray, cotangent: np.ndarray) -> Any:
    """The cotangent times the slope, and 0 where the gate is cut."""
    return np.where(gate > 7, 0, cotangent * silu_slope(1.702 * gate))


def clamped_value_vjp(value: np.ndarray, cotangent: np.ndarray) -> Any:
    """The cotangent, and 0 where the value is cut."""
    return np.where(np.abs(value) > 7, 0, cotangent)


def expert_network_vjp(
    parameters: FeedForward | GatedFeedForward,
    x: Float[np.ndarray, "N E"],
    activation: str,
    cotangent: Float[np.ndarray, "N E_out"],
) -> FeedForwardGradients:
    """Gradients of one network's parameters and of x (MOE-4)."""
    if isinstance(parameters, FeedForward):
        return feed_forward_vjp(parameters, x, cotangent, activation=activation)
    if activation != "clamped_swiglu":
        return gated_feed_forward_vjp(parameters, x, cotangent, activation=activation)
    gate, value = widen(linear(parameters.gate, x)), widen(linear(parameters.inner, x))
    hidden = (clamped_gate(gate) * clamped_value(value)).astype(x.dtype)
    outer, hidden_gradient = linear_vjp(parameters.outer, hidden, cotangent)
    product_gradient = widen(hidden_gradient)
    gate_gradient = clamped_gate_vjp(gate, product_gradient * clamped_value(value))
    value_gradient = clamped_value_vjp(value, product_gradient * clamped_gate(gate))
    gate_parameters, through_gate = linear_vjp(parameters.gate, x, gate_gradient.astype(x.dtype))
    inner, through_inner = linear_vjp(parameters.inner, x, value_gradient.astype(x.dtype))
    x_gradient = (widen(through_gate) + widen(through_inner)).astype(x.dtype)
    return FeedForwardGradients(GatedFeedForward(gate_parameters, inner, outer), x_gradient)


@gradient_of("parameters", "x")
@np.errstate(all="ignore")
def mixture_of_experts_vjp(
    parameters: MixtureOfExperts,
    x: Float[np.ndarray, "... E"],
    cotangent: Float[np.ndarray, "... E_out"],
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
) -> MixtureOfExpertsGradients:
    """Compute the gradients of parameters and x; the choice is a constant (MOE-4, MOE-5).

    Args:
        parameters, x: As in `mixture_of_experts`.
        cotangent: Gradient with respect to the result of `mixture_of_experts`, [..., E_out], in its dtype.
        chosen, scoring, groups, chosen_groups, group_score, weighting, scale, activation, capacity, token_mask: As in
            `mixture_of_experts`.

    Returns:
        Gradients in the shapes and dtypes of the arguments; 0 for the choice bias, and for an expert that takes no
        token. The parts of the gradient of x that pass through networks round to its dtype before they are added.

    Raises:
        TypeError, ValueError: As in `mixture_of_experts`, and for a cotangent in another shape or dtype than its
            result.
    """
    checks.mixture_of_experts(parameters, x, activation, capacity, token_mask)
    router, experts, choice_bias, shared = parameters
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.route(x, router, choice_bias, **options)
    checks.cotangent(cotangent, (*x.shape[:-1], experts.outer.weight.shape[-1]), dtype_name(x))
    count, X = math.prod(x.shape[:-1]), router.weight.shape[1]
    real = np.ones(count, bool) if token_mask is None else token_mask.reshape(count)
    tokens = np.where(real[:, None], x.reshape(count, x.shape[-1]), x.dtype.type(0))
    received = np.where(real[:, None], widen(cotangent).reshape(count, cotangent.shape[-1]), 0)
    logits = np.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, scores = route_by_logits(logits, choice_bias, **options)
    weights = spread(weights, indices, X)
    places = taken_places(indices, X, real, capacity)
    weights_gradient, tokens_gradient = np.zeros_like(weights), np.zeros(tokens.shape, weights.dtype)
    experts_gradient = mapped(np.zeros_like, experts)
    for expert in range(X):
        rows = np.flatnonzero(places[:, expert])
        if rows.size > 0:
            own = mapped(lambda stack, expert=expert: stack[expert], experts)
            result = expert_network(own, tokens[rows], activation)
            weights_gradient[rows, expert] = np.sum(received[rows] * widen(result), axis=-1)
            result_gradient = (weights[rows, expert, None] * received[rows]).astype(x.dtype)
            own_gradient, through_own = expert_network_vjp(own, tokens[rows], activation, result_gradient)
            mapped(
                lambda stack, part, expert=expert: np.copyto(stack[expert, ...], part), experts_gradient, own_gradient
            )
            tokens_gradient[rows] += widen(through_own)
    shared_gradient = None
    if shared is not None:
        rows = np.flatnonzero(real)
        shared_gradient, through_shared = expert_network_vjp(
            shared, tokens[rows], activation, received[rows].astype(x.dtype)
        )
        tokens_gradient[rows] += widen(through_shared)
    chosen_gradient = np.take_along_axis(weights_gradient, indices, axis=-1)
    through_logits = logits_gradient(logits, choice_bias, chosen_gradient, np.zeros_like(scores), **options)
    through_logits = np.where(real[:, None], through_logits, 0)
    through_router, router_gradient = router_gradients(tokens, router, through_logits)
    tokens_gradient = np.where(real[:, None], tokens_gradient + through_router, 0).astype(x.dtype)
    bias_gradient = None if choice_bias is None else np.zeros_like(choice_bias)
    parameters_gradient = MixtureOfExperts(router_gradient, experts_gradient, bias_gradient, shared_gradient)
    return MixtureOfExpertsGradients(parameters_gradient, tokens_gradient.reshape(x.shape))
