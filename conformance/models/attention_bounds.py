"""Bounds of a block's attention and of its gradients, with norms of queries and keys, rotation, window, sinks and bias.

Each piece is rounded to the model's dtype: projections, norms, rotations, what the heads give. A piece is bounded as an
operation of its own on exact inputs, and beside that carries on what its inputs are off by.

Norms. With spread r = sqrt(mean(x^2) + eps), n = x / r, and x off by d: r moves by at most rms(d), because the root is
a Euclidean norm, so n moves by at most (|d| + |n| rms(d)) / (r - rms(d)). Where the mean is subtracted first, the
deviations are off by |d| + mean|d|, and their spread still by rms(d) at most.

Rotations. A pair that is off by (d, e) is, once it is turned, off by |d cos| + |e sin| and |e cos| + |d sin|.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.bounds import attention as att
from conformance.bounds import layer_norm as norms
from conformance.bounds import layers
from conformance.bounds.arithmetic import Approx, Precision, add, exact, round_output
from conformance.bounds.operations import concatenate_heads, keep_factor, pairs, split_heads
from conformance.bounds.rotary import pair_columns, rotation
from reference_numpy import materialize
from reference_numpy.blocks import key_heads
from reference_numpy.multi_head_attention import join_heads
from specification.blocks import attention_options, windowed
from specification.configuration import AttentionLayer, Configuration
from specification.frequencies import attention_factor, exact_frequencies
from specification.parameters import Linear, MultiHeadAttention, Norm
from specification.rotary import Rotary

if TYPE_CHECKING:
    from specification.dropout import Dropout
    from specification.masks import Mask
    from specification.rotary import Rotation

# --- pieces -----------------------------------------------------------------------------------------------------------


class UnderNorm(NamedTuple):
    """Rows [rows, n] under a norm: exact values, and what these move by because of what the rows are off by.

    direction: what the slope of the spread goes by; of `standard_deviation_norm` it is without eps.
    """

    kind: str
    weight: Approx
    bias: np.ndarray | None
    eps: float
    normalized: np.ndarray
    moved: np.ndarray
    reciprocal: np.ndarray
    relative: np.ndarray  # of the reciprocal
    direction: np.ndarray
    direction_moved: np.ndarray


def norm_input(norm: Norm, x: Approx, configuration: Configuration, p: Precision) -> UnderNorm:
    kind, eps = configuration.norm.removesuffix("_plus_one"), configuration.norm_eps
    weight = norms.multiplier(np.asarray(norm.weight, float), configuration.norm.endswith("_plus_one"), p)
    bias = None if norm.bias is None else np.asarray(norm.bias, float)
    deviation, off = x
    if kind != "rms_norm":
        deviation, off = deviation - norms.average(deviation), off + norms.average(off)
    outside = kind == "standard_deviation_norm"
    count = x.value.shape[-1] - (1 if outside else 0)
    of_spread = np.sqrt(np.sum(x.error**2, axis=-1, keepdims=True) / count)
    square = np.sum(deviation**2, axis=-1, keepdims=True) / count
    added = eps if outside else 0.0
    root = np.sqrt(square) if outside else np.sqrt(square + eps)
    least = np.maximum(root - of_spread, 0.0 if outside else np.sqrt(eps))

    def quotient(spread: np.ndarray, smallest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = deviation / spread
        return value, (off + np.abs(value) * of_spread) / smallest

    reciprocal, relative = 1 / (root + added), of_spread / (least + added)
    return UnderNorm(
        kind, weight, bias, eps, *quotient(root + added, least + added), reciprocal, relative, *quotient(root, least)
    )


def norm_of(norm: Norm, x: Approx, configuration: Configuration, p: Precision) -> Approx:
    """The norm over the last axis."""
    rows = layers.flatten_rows(x)
    n = norm_input(norm, rows, configuration, p)
    own = norms.forward(n.kind, rows.value, n.weight, n.bias, n.eps, p)
    # The last roundings are of what was moved, too.
    carried = n.moved * n.weight.size * (1 + p.gamma(8))
    return Approx(own.value, own.error + carried).reshape(*x.value.shape)


def norm_gradients(
    norm: Norm, x: Approx, cotangent: Approx, configuration: Configuration, p: Precision
) -> tuple[Norm, Approx]:
    """Bounds of the gradients of weight and bias, each an Approx, and of x."""
    rows, bars = layers.flatten_rows(x), layers.flatten_rows(cotangent)
    n = norm_input(norm, rows, configuration, p)
    own = norms.gradients(n.kind, rows.value, n.weight, bars.value, n.eps, p)
    inner, inner_off = np.abs(bars.value) * n.weight.size, bars.error * n.weight.size
    size = np.abs(n.normalized) + n.moved
    n_share = rows.value.shape[-1] - (1 if n.kind == "standard_deviation_norm" else 0)
    slope = np.sum(inner * np.abs(n.normalized), axis=-1, keepdims=True) / n_share
    slope_off = np.sum(inner_off * size + inner * n.moved, axis=-1, keepdims=True) / n_share
    bracket = inner_off + n.direction_moved * (slope + slope_off) + np.abs(n.direction) * slope_off
    bracket = bracket + (norms.average(inner_off) if n.kind != "rms_norm" else 0)
    carried = n.reciprocal * (1 + n.relative) * bracket + n.relative * np.abs(own["x"].value)
    weight_off = np.sum(bars.error * size + np.abs(bars.value) * n.moved, axis=0)
    weight = Approx(own["weight"].value, own["weight"].error + weight_off)
    bias = Approx(own["bias"].value, own["bias"].error + np.sum(bars.error, axis=0))
    x_gradient = Approx(own["x"].value, own["x"].error + carried * (1 + p.gamma(16))).reshape(*x.value.shape)
    return Norm(weight, None if norm.bias is None else bias), x_gradient


def rotate_approx(x: Approx, rotary: Rotary | None, sign: int, p: Precision) -> Approx:
    """x [B, H, T, D] turned by its positions, or back; rounded where it is turned."""
    if rotary is None:
        return x
    length, width = x.value.shape[2], rotary.width or x.value.shape[3]
    frequencies = exact_frequencies(width, float(rotary.base), rotary.scaling, length or None)
    angles = np.arange(length)[:, None] * np.array([float(frequency) for frequency in frequencies])
    size = attention_factor(rotary.scaling)
    own = rotation(x.value, angles, size, rotary.pairing, sign, p)
    carried = x.error.copy()
    first, second = pair_columns(width, rotary.pairing)
    sine, cosine = size * np.abs(np.sin(angles)), size * np.abs(np.cos(angles))
    carried[..., first] = x.error[..., first] * cosine + x.error[..., second] * sine
    carried[..., second] = x.error[..., second] * cosine + x.error[..., first] * sine
    return round_output(Approx(own.value, own.error + carried * (1 + p.gamma(32))), p)


# --- queries and keys -------------------------------------------------------------------------------------------------


def linear(projection: Linear, x: Approx, p: Precision) -> Approx:
    bias = None if projection.bias is None else exact(projection.bias)
    return round_output(layers.linear(x, exact(projection.weight), bias, p), p)


Gradients = tuple[Linear, Norm | None, Approx]
"""Of a projection, of its norm and of x, each array an Approx."""


def project(
    projection: Linear | list[Linear],
    norm: Norm | None,
    x: np.ndarray,
    heads: int,
    rotary: Rotary | None,
    configuration: Configuration,
    p: Precision,
) -> tuple[Approx, Callable[[Approx], Gradients]]:
    """From x to queries, keys or values [B, H, T, D]; and from a cotangent of these to gradients."""
    joined = join_heads(projection)
    columns = linear(joined, exact(x), p)
    together = norm is not None and norm.weight.shape == columns.value.shape[-1:]  # one norm of all heads
    before = columns if together else split_heads(columns, heads)
    result = before if norm is None else round_output(norm_of(norm, before, configuration, p), p)
    result = split_heads(result, heads) if together else result

    def gradients(cotangent: Approx) -> Gradients:
        bar, norm_gradient = rotate_approx(round_output(cotangent, p), rotary, -1, p), None
        bar = concatenate_heads(bar) if together else bar
        if norm is not None:
            norm_gradient, bar = norm_gradients(norm, before, bar, configuration, p)
            bar = round_output(bar, p)
        bar = bar if together else concatenate_heads(bar)
        x_gradient, weight, bias = layers.linear_gradients(exact(x), exact(joined.weight), bar, p)
        return Linear(weight, None if joined.bias is None else bias), norm_gradient, x_gradient

    return rotate_approx(result, rotary, 1, p), gradients


# --- the whole --------------------------------------------------------------------------------------------------------


def attend(
    dtype: str,
    p: MultiHeadAttention,
    x: np.ndarray,
    memory: np.ndarray,
    mask: Mask | np.ndarray | None,
    dropout: Dropout | None,
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
    bias: np.ndarray | None = None,
    rotation: Rotation | None = None,
    *,
    cotangent: np.ndarray | None = None,
) -> Any:
    """The bound of the result; with a cotangent, those of the gradients of p, x, memory and bias."""
    u, H = Precision.make(dtype), configuration.num_heads
    G = key_heads(p, H)
    query, query_gradients = project(p.query, p.query_norm, x, H, layer.rotary, configuration, u)
    key, key_gradients = project(p.key, p.key_norm, memory, G, layer.rotary, configuration, u)
    value, value_gradients = project(p.value, None, memory, G, None, configuration, u)
    options = attention_options(x.shape[-1], windowed(mask, layer), dropout, configuration)
    shape = (*query.value.shape[:3], key.value.shape[2])
    allowed = materialize(options["mask"], *shape[2:], batch=shape[0], heads=H)
    allowed = allowed if bias is None else allowed & (np.asarray(bias, float) != -np.inf)
    keep = options["dropout_keep"]
    given = None if cotangent is None else exact(cotangent)
    bar = None
    if given is not None:
        bar = split_heads(round_output(layers.input_gradient(exact(p.output.weight), given, u), u), H)
    forward, inner = att.attention(
        "output", query, key, value, np.broadcast_to(allowed, shape), bar,
        bias=pairs(bias), scale=options["scale"], softcap=options["softcap"],
        sinks=None if p.sinks is None else exact(p.sinks),
        factor=None if keep is None else keep_factor(keep, options["dropout_rate"]),
        empty_rows=options["empty_rows"], p=u,
    )  # fmt: skip
    heads = concatenate_heads(round_output(forward, u))
    if given is None:
        return result_error(linear(p.output, heads, u), dtype)
    weight, output_bias = layers.parameter_gradients(heads, given, u)
    output = Linear(weight, None if p.output.bias is None else output_bias)
    of_query, of_key = query_gradients(inner["query"]), key_gradients(inner["key"])
    of_value = value_gradients(inner["value"])
    sinks = inner.get("sinks")
    gradients = MultiHeadAttention(of_query[0], of_key[0], of_value[0], output, of_query[1], of_key[1], sinks)
    of_memory = add(round_output(of_key[2], u), round_output(of_value[2], u), u)
    of_bias = None if bias is None else inner["bias"].reshape(*bias.shape)
    return round_errors((gradients, of_query[2], of_memory, of_bias), dtype)


def result_error(x: Approx, dtype: str) -> np.ndarray:
    """The error of a result in that dtype; the oracle is rounded to float64 itself."""
    error = x.error + (2.0**-46 * np.abs(x.value) if dtype != "float64" else 0)
    return np.where(np.isnan(error), np.inf, error)


def round_errors(tree: Any, dtype: str) -> Any:
    """The errors of a structure of gradients, each rounded to the dtype."""
    if isinstance(tree, Approx):
        return result_error(round_output(tree, Precision.make(dtype)), dtype)
    if tree is None:
        return None
    parts = [round_errors(part, dtype) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
