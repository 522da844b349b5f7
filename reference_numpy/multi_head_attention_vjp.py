"""Gradients of the operations in `multi_head_attention.py`, by hand (ATT-12)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from reference_numpy.attention import attention
from reference_numpy.attention_vjp import attention_vjp
from reference_numpy.dtypes import widen
from reference_numpy.multi_head_attention import concatenate_heads, fused, linear, split_heads
from reference_numpy.tape import gradient_of
from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import dtype_name

__all__ = ["MultiHeadAttentionGradients", "multi_head_attention_vjp"]


class MultiHeadAttentionGradients(NamedTuple):
    """Gradients of the parameters (fused, as `join_heads` gives them) and of everything else."""

    parameters: MultiHeadAttention
    query: Any
    key: Any
    value: Any
    bias: Any
    sinks: Any


@gradient_of("parameters", "x")
def linear_vjp(
    parameters: Linear, x: Float[np.ndarray, "... I"], cotangent: Float[np.ndarray, "... O"]
) -> tuple[Linear, Float[np.ndarray, "... I"]]:
    """Gradients of the parameters and of x, for `linear`."""
    count = math.prod(x.shape[:-1])
    rows, flat = (widen(array).reshape(count, array.shape[-1]) for array in (cotangent, x))
    weight = (flat.T @ rows).astype(parameters.weight.dtype)
    bias = None if parameters.bias is None else rows.sum(axis=0).astype(parameters.bias.dtype)
    return Linear(weight, bias), (widen(cotangent) @ widen(parameters.weight).T).astype(x.dtype)


@gradient_of("projections")
def join_heads_vjp(projections: Linear | list[Linear], cotangent: Linear) -> Linear:
    """Those of per-head projections stay joined."""
    return cotangent


@gradient_of("x")
def split_heads_vjp(
    x: Float[np.ndarray, "B T HW"], num_heads: int, cotangent: Float[np.ndarray, "B H T W"]
) -> Float[np.ndarray, "B T HW"]:
    """The heads' gradients side by side."""
    return concatenate_heads(cotangent)


@gradient_of("x")
def concatenate_heads_vjp(
    x: Float[np.ndarray, "B H T W"], cotangent: Float[np.ndarray, "B T HW"]
) -> Float[np.ndarray, "B H T W"]:
    """Each head's columns."""
    return split_heads(cotangent, x.shape[1])


@np.errstate(all="ignore")
def multi_head_attention_vjp(
    parameters: MultiHeadAttention,
    query: Float[np.ndarray, "B Q E"],
    key: Float[np.ndarray, "B K E_key"],
    value: Float[np.ndarray, "B K E_value"],
    cotangent: Float[np.ndarray, "B Q E_out"],
    *,
    num_heads: int,
    **options: Any,
) -> MultiHeadAttentionGradients:
    """Compute the gradients of parameters, query, key, value, bias and sinks (ATT-12).

    Args:
        parameters, query, key, value: As in `multi_head_attention`.
        cotangent: Gradient with respect to the result of `multi_head_attention`, [B, Q, E_out], in its dtype.
        num_heads, **options: As in `multi_head_attention`.

    Returns:
        Gradients in the shapes and dtypes of the arguments.

    Raises:
        TypeError, ValueError: As in `multi_head_attention`, and for a cotangent in another shape or dtype than its
            result.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = fused(parameters)
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    checks.cotangent(cotangent, (*query.shape[:2], projections.output.weight.shape[1]), dtype_name(query))
    inputs, counts = (query, key, value), (H, G, G)
    heads = [split_heads(linear(p, x), n) for p, x, n in zip(projections[:3], inputs, counts, strict=True)]
    joined = concatenate_heads(attention(*heads, **options))
    output_gradient, joined_gradient = linear_vjp(projections.output, joined, cotangent)
    inner = attention_vjp(heads[0], heads[1], heads[2], split_heads(joined_gradient, H), **options)
    pairs = [
        linear_vjp(p, x, concatenate_heads(gradient))
        for p, x, gradient in zip(projections[:3], inputs, inner[:3], strict=True)
    ]
    of_query, of_key, of_value = (pair[0] for pair in pairs)
    parameters_gradient = MultiHeadAttention(of_query, of_key, of_value, output_gradient)
    inputs_gradient = [pair[1] for pair in pairs]
    return MultiHeadAttentionGradients._make([parameters_gradient, *inputs_gradient, inner.bias, inner.sinks])
