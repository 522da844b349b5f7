"""Gradients of the operations in `feed_forward.py`, by hand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.attention_steps import dropout_factor
from reference_numpy.dtypes import widen
from reference_numpy.feed_forward import ACTIVATIONS, finite_size, normal_distribution
from reference_numpy.multi_head_attention import linear
from reference_numpy.multi_head_attention_vjp import linear_vjp
from reference_numpy.tape import gradient_of
from specification import FeedForward, GatedFeedForward, checks
from specification.dtypes import dtype_name

__all__ = ["FeedForwardGradients", "feed_forward_vjp", "gated_feed_forward_vjp", "silu_vjp"]


class FeedForwardGradients(NamedTuple):
    """Gradients in the shapes and dtypes of the arguments."""

    parameters: FeedForward | GatedFeedForward
    x: Any


def relu_slope(x: np.ndarray) -> Any:
    """1 where x is above 0, and 0 elsewhere."""
    return (x > 0).astype(x.dtype)


def gelu_slope(x: np.ndarray) -> Any:
    """Phi(x) + x * phi(x), with the normal distribution function and density."""
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return normal_distribution(x) + x * density


def gelu_tanh_slope(x: np.ndarray) -> Any:
    """(1 + t) / 2 + x (1 - t^2) / 2 * sqrt(2 / pi) (1 + 3 * 0.044715 x^2), with t the function's own tanh."""
    root = math.sqrt(2 / math.pi)
    t = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * root * (1 + 3 * 0.044715 * x**2)


def silu_slope(x: np.ndarray) -> Any:
    """sigmoid(x) + x * sigmoid(x) * sigmoid(-x), which for x of 0 or more is 1 less the slope at -x.

    1 at infinity and 0 at -infinity. exp(x) is taken by its root, as in `silu_steps`.
    """
    size = finite_size(x)
    root = np.exp(-0.5 * size)
    total = 1 + root * root
    below = root * (1 - size / total) * root / total
    return np.where(x >= 0, 1 - below, below)


SLOPES = {"relu": relu_slope, "gelu": gelu_slope, "gelu_tanh": gelu_tanh_slope, "silu": silu_slope}


def activation_vjp(activation: str, x: np.ndarray, cotangent: np.ndarray) -> Any:
    """The cotangent times the slope; what a ReLU holds back is 0, also where that is NaN."""
    slope = SLOPES[activation](x)
    held = (slope == 0) & (activation == "relu")
    return np.where(held, 0, cotangent * slope)


@gradient_of("parameters", "x")
@np.errstate(all="ignore")
def feed_forward_vjp(
    parameters: FeedForward,
    x: Float[np.ndarray, "... E"],
    cotangent: Float[np.ndarray, "... E_out"],
    *,
    activation: str = "relu",
    dropout_keep: Bool[np.ndarray, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> FeedForwardGradients:
    """Compute the gradients of parameters and x (ATT-12).

    Args:
        parameters, x: As in `feed_forward`.
        cotangent: Gradient with respect to the result of `feed_forward`, [..., E_out], in its dtype.
        activation, dropout_keep, dropout_rate: As in `feed_forward`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `feed_forward`, and for a cotangent in another shape or dtype than its result.
    """
    checks.feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    checks.cotangent(cotangent, (*x.shape[:-1], parameters.outer.weight.shape[1]), dtype_name(x))
    before = widen(linear(parameters.inner, x))
    keep = np.ones(1, bool) if dropout_keep is None else dropout_keep
    factor = dropout_factor(keep, dropout_rate, before.dtype)
    hidden = (ACTIVATIONS[activation](before) * factor).astype(x.dtype)
    outer, hidden_gradient = linear_vjp(parameters.outer, hidden, cotangent)
    before_gradient = activation_vjp(activation, before, widen(hidden_gradient) * factor)
    inner, x_gradient = linear_vjp(parameters.inner, x, before_gradient.astype(x.dtype))
    return FeedForwardGradients(FeedForward(inner, outer), x_gradient)


@gradient_of("parameters", "x")
@np.errstate(all="ignore")
def gated_feed_forward_vjp(
    parameters: GatedFeedForward,
    x: Float[np.ndarray, "... E"],
    cotangent: Float[np.ndarray, "... E_out"],
    *,
    activation: str = "silu",
    dropout_keep: Bool[np.ndarray, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> FeedForwardGradients:
    """Compute the gradients of parameters and x (ATT-12).

    Args:
        parameters, x: As in `gated_feed_forward`.
        cotangent: Gradient with respect to the result of `gated_feed_forward`, [..., E_out], in its dtype.
        activation, dropout_keep, dropout_rate: As in `gated_feed_forward`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `gated_feed_forward`, and for a cotangent in another shape or dtype than its
            result.
    """
    checks.gated_feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    checks.cotangent(cotangent, (*x.shape[:-1], parameters.outer.weight.shape[1]), dtype_name(x))
    before = widen(linear(parameters.gate, x))
    gate = ACTIVATIONS[activation](before)
    value = widen(linear(parameters.inner, x))
    keep = np.ones(1, bool) if dropout_keep is None else dropout_keep
    factor = dropout_factor(keep, dropout_rate, before.dtype)
    hidden = (gate * value * factor).astype(x.dtype)
    outer, hidden_gradient = linear_vjp(parameters.outer, hidden, cotangent)
    product_gradient = widen(hidden_gradient) * factor
    before_gradient = activation_vjp(activation, before, product_gradient * value)
    gate_parameters, through_gate = linear_vjp(parameters.gate, x, before_gradient.astype(x.dtype))
    inner, through_inner = linear_vjp(parameters.inner, x, (product_gradient * gate).astype(x.dtype))
    x_gradient = (widen(through_gate) + widen(through_inner)).astype(x.dtype)
    return FeedForwardGradients(GatedFeedForward(gate_parameters, inner, outer), x_gradient)


@np.errstate(all="ignore")
def silu_vjp(x: Float[np.ndarray, "..."], cotangent: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Compute the gradient of x: the cotangent times the slope, rounded once (ACT-1).

    Args:
        x: As in `silu`.
        cotangent: Gradient with respect to the result of `silu`, in its shape and dtype.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError, ValueError: As in `silu`, and for a cotangent in another shape or dtype than its result.
    """
    checks.silu(x)
    checks.cotangent(cotangent, x.shape, dtype_name(x))
    return np.asarray(widen(cotangent) * silu_slope(widen(x)), x.dtype)
