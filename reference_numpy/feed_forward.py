"""The position-wise feed-forward network, defined (rule FFN-1; "Attention Is All You Need", section 3.3), and SiLU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from reference_numpy.attention_steps import dropout_factor
from reference_numpy.dtypes import widen
from reference_numpy.multi_head_attention import linear
from reference_numpy.tape import operation
from specification import FeedForward, GatedFeedForward, checks

__all__ = ["feed_forward", "gated_feed_forward", "silu"]


def complementary_error(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """erfc in float64; NumPy has none, and Python's is accurate to about one unit in the last place of a float64."""
    numbers: Any = np.ravel(x).astype(np.float64)
    values = map(math.erfc, memoryview(numbers))  # twice as fast as `np.vectorize`
    return np.fromiter(values, np.float64, numbers.size).reshape(np.shape(x))


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """max(x, 0). NaN stays NaN; the slope at 0 is 0."""
    return np.maximum(x, 0)


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x * Phi(x), with the normal distribution function (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return x * normal_distribution(x)


def normal_distribution(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Phi(x) = erfc(-x / sqrt(2)) / 2, which keeps its digits for negative x, where 1 + erf(x / sqrt(2)) cancels."""
    return 0.5 * complementary_error(-x / math.sqrt(2)).astype(x.dtype)


def gelu_tanh(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), the same paper's approximation."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def finite_size(x: np.ndarray) -> Any:
    """|x|, and the largest number for infinity, which no 0 makes a NaN. NaN stays NaN."""
    size = np.abs(x)
    return np.minimum(size, np.finfo(x.dtype).max)


def silu_steps(x: np.ndarray) -> Any:
    """x * sigmoid(x) = max(x, 0) - |x| * sigmoid(-|x|), in the dtype of x.

    exp(-|x|) is taken as the square of exp(-|x| / 2), a factor at a time: where x * exp(x) is still a normal number, it
    is none any more, but its root is. Of an array without axes NumPy makes numbers.
    """
    size = finite_size(x)
    root = np.exp(-0.5 * size)
    return np.where(x >= 0, x, 0) - size * root * root / (1 + root * root)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu_steps}
"""By the name that a configuration has (FFN-1, FFN-2)."""


@operation
@np.errstate(all="ignore")  # NaN and infinity are legal inputs, and say so in the output
def feed_forward(
    parameters: FeedForward,
    x: Float[np.ndarray, "... E"],
    *,
    activation: str = "relu",
    dropout_keep: Bool[np.ndarray, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[np.ndarray, "... E_out"]:
    """Compute outer(activation(inner(x))), each a linear projection, for every position on its own (FFN-1).

    Args:
        parameters: Two projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        dropout_keep: [..., F], True = keep the activation. The caller draws it; only some dialects have it.
        dropout_rate: In [0, 1). Activations that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the activation round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    hidden = ACTIVATIONS[activation](widen(linear(parameters.inner, x)))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, hidden.astype(x.dtype))


@operation
@np.errstate(all="ignore")
def gated_feed_forward(
    parameters: GatedFeedForward,
    x: Float[np.ndarray, "... E"],
    *,
    activation: str = "silu",
    dropout_keep: Bool[np.ndarray, "... F"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[np.ndarray, "... E_out"]:
    """Compute outer(activation(gate(x)) * inner(x)) for every position on its own (FFN-2; Shazeer, arXiv 2002.05202).

    Args:
        parameters: Three projections in the dtype of x, each with a weight [in, out].
        x: [..., E].
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        dropout_keep: [..., F], True = keep the product. The caller draws it.
        dropout_rate: In [0, 1). Products that are kept are divided by 1 - rate.

    Returns:
        A new array [..., E_out] in the dtype of x, to which each projection and the product round.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.gated_feed_forward(parameters, x, activation, dropout_keep, dropout_rate)
    gate = ACTIVATIONS[activation](widen(linear(parameters.gate, x)))
    hidden = gate * widen(linear(parameters.inner, x))
    if dropout_keep is not None:
        hidden = hidden * dropout_factor(dropout_keep, dropout_rate, hidden.dtype)
    return linear(parameters.outer, hidden.astype(x.dtype))


@np.errstate(all="ignore")
def silu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Compute x * sigmoid(x) for every element, and round once (ACT-1).

    "SiLU" in Hendrycks and Gimpel, arXiv 1606.08415; "swish" in Ramachandran et al., arXiv 1710.05941.

    Args:
        x: An array of any shape, in float16, bfloat16, float32 or float64.

    Returns:
        A new array in the shape and dtype of x.

    Raises:
        TypeError: x is no array, or has another dtype.
    """
    checks.silu(x)
    return np.asarray(silu_steps(widen(x)), x.dtype)
