"""Right merging, multi-head attention, feed-forward network and lookups in NumPy, in steps that can be replaced."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults import right_numpy
from conformance.selftest.faults.right_numpy import Function, widen
from reference_numpy.embedding_vjp import embedding_vjp
from reference_numpy.feed_forward import gelu, gelu_tanh, relu, silu_steps
from reference_numpy.feed_forward_vjp import gated_feed_forward_vjp
from reference_numpy.positions_vjp import relative_position_bias_vjp
from specification import Linear

# --- merging ----------------------------------------------------------------------------------------------------------


def largest(logsumexps: Any) -> Any:
    """Over the parts, 0 where none saw a key; [parts, B, H, Q] to [B, H, Q]."""
    maximum = logsumexps.max(axis=0)
    return np.where(maximum == -np.inf, 0, maximum)


def part_weights(logsumexps: Any, maximum: Any) -> Any:
    """exp(part - maximum), before they are divided by their sum."""
    return np.exp(logsumexps - maximum)


def mixed(weights: Any, outputs: Any, seen: Any) -> Any:
    """The sum over the parts that saw a key; `seen` and `weights` [parts, B, H, Q]."""
    return np.where(seen[..., None], weights[..., None] * outputs, 0).sum(axis=0)


def merged_logsumexp(maximum: Any, total: Any) -> Any:
    return maximum + np.log(total)


class Merging(NamedTuple):
    """Every step of merging under the name by which a fault replaces it."""

    largest: Function = largest
    weights: Function = part_weights
    mixed: Function = mixed
    logsumexp: Function = merged_logsumexp


def merge_attention_by(s: Merging) -> Function:
    """`merge_attention` in these steps."""

    @np.errstate(all="ignore")
    def merge_attention(outputs: Any, logsumexps: Any) -> Any:
        parts, scores = np.stack([widen(o) for o in outputs]), np.stack([widen(x) for x in logsumexps])
        maximum = s.largest(scores)
        weights = s.weights(scores, maximum)
        total = weights.sum(axis=0)
        output = s.mixed(weights / np.where(total == 0, 1, total), parts, scores != -np.inf)
        return output.astype(outputs[0].dtype), s.logsumexp(maximum, total)

    return merge_attention


# --- multi-head attention ---------------------------------------------------------------------------------------------


def linear(projection: Any, x: Any) -> Any:
    """x @ weight + bias, rounded to the dtype of x."""
    output = widen(x) @ widen(projection.weight)
    return (output if projection.bias is None else output + widen(projection.bias)).astype(x.dtype)


def joined(projection: Any) -> Linear:
    """Per-head projections side by side, in head order."""
    if isinstance(projection, Linear):
        return projection
    weight = np.concatenate([head.weight for head in projection], axis=1)
    return Linear(weight, None if projection[0].bias is None else np.concatenate([head.bias for head in projection]))


def split(x: Any, heads: int) -> Any:
    """Head h is the h-th block of columns: [B, T, H * W] to [B, H, T, W]."""
    B, T, width = x.shape
    return x.reshape(B, T, heads, width // heads).swapaxes(1, 2)


def concatenated(x: Any) -> Any:
    """The heads' columns side by side again."""
    B, H, T, W = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * W)


class Projecting(NamedTuple):
    """Every step of multi-head attention under the name by which a fault replaces it."""

    linear: Function = linear
    joined: Function = joined
    split: Function = split
    attention: Function = right_numpy.attention
    concatenated: Function = concatenated


def multi_head_attention_by(s: Projecting) -> Function:
    """`multi_head_attention` in these steps."""

    def multi_head_attention(
        parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, mask: Any = None, bias: Any = None,
        scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    ) -> Any:  # fmt: skip
        of_query, of_key, of_value = (s.joined(projection) for projection in parameters[:3])
        key_heads = of_key.weight.shape[1] * num_heads // of_query.weight.shape[1]
        output = s.attention(
            s.split(s.linear(of_query, query), num_heads),
            s.split(s.linear(of_key, key), key_heads),
            s.split(s.linear(of_value, value), key_heads),
            mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        )  # fmt: skip
        return s.linear(parameters.output, s.concatenated(output))

    return multi_head_attention


# --- feed-forward network ---------------------------------------------------------------------------------------------


class Network(NamedTuple):
    """Every step of the feed-forward network under the name by which a fault replaces it."""

    relu: Function = relu
    gelu: Function = gelu
    gelu_tanh: Function = gelu_tanh
    silu: Function = silu_steps
    inner: Function = linear
    outer: Function = linear
    dropout: Function = right_numpy.dropout


def feed_forward_by(s: Network) -> Function:
    """`feed_forward` in these steps."""

    @np.errstate(all="ignore")
    def feed_forward(
        parameters: Any, x: Any, *, activation: str = "relu", dropout_keep: Any = None, dropout_rate: float = 0.0
    ) -> Any:
        hidden = getattr(s, activation)(widen(s.inner(parameters.inner, x)))
        return s.outer(parameters.outer, s.dropout(hidden, dropout_keep, dropout_rate).astype(x.dtype))

    return feed_forward


def product(gate: Any, value: Any, activation: Function) -> Any:
    """The gate, activated, times the other projection."""
    return activation(gate) * value


class Gated(NamedTuple):
    """Every step of the gated feed-forward network under the name by which a fault replaces it."""

    product: Function = product
    linear: Function = linear
    outer: Function = linear
    dropout: Function = right_numpy.dropout
    activations: Network = Network()
    gradients: Function = gated_feed_forward_vjp


def gated_feed_forward_by(s: Gated) -> Function:
    """`gated_feed_forward` in these steps."""

    @declare(vjp=s.gradients)
    @np.errstate(all="ignore")
    def gated_feed_forward(
        parameters: Any, x: Any, *, activation: str = "silu", dropout_keep: Any = None, dropout_rate: float = 0.0
    ) -> Any:
        gate, value = widen(s.linear(parameters.gate, x)), widen(s.linear(parameters.inner, x))
        hidden = s.product(gate, value, getattr(s.activations, activation))
        return s.outer(parameters.outer, s.dropout(hidden, dropout_keep, dropout_rate).astype(x.dtype))

    return gated_feed_forward


# --- lookups ----------------------------------------------------------------------------------------------------------


def embedding_by(rows: Function, table_bar: Function = embedding_vjp) -> Function:
    """`embedding` with `rows(table, ids, scaled)` in the compute dtype; `table_bar` gives the table's gradient."""

    def vjp(table: Any, ids: Any, cotangent: Any, *, scaled: bool = False) -> dict[str, Any]:
        return {"table": table_bar(table, ids, cotangent, scaled=scaled)}

    @declare(vjp=vjp)
    def embedding(table: Any, ids: Any, *, scaled: bool = False) -> Any:
        return rows(table, ids, scaled).astype(table.dtype)

    return embedding


def taken(table: Any, ids: Any, scaled: bool) -> Any:
    rows = widen(table[ids])
    return rows * rows.dtype.type(math.sqrt(table.shape[1])) if scaled else rows


def learned_positions(table: Any, length: int, *, offset: int = 0) -> Any:
    """Rows offset, ..., offset + length - 1 of the table, as a new array."""
    return table[offset : offset + length].copy()


def sinusoidal_by(angles: Function, columns: Function) -> Function:
    """`sinusoidal_positions` from `angles(positions, width, exponent)` and `columns(angles)`."""

    def sinusoidal_positions(
        length: int, width: int, *, offset: int = 0, exponent: str = "shared", dtype: str = "float32"
    ) -> Any:
        return columns(angles(np.arange(length) + offset, width, exponent)).astype(right_dtype(dtype))

    return sinusoidal_positions


def right_dtype(name: str) -> Any:
    return np.zeros(0).astype(name).dtype


def angles(positions: Any, width: int, exponent: str) -> Any:
    """p / 10000^(2i / E) for the columns 2i and 2i + 1, or for "doubled" p / 10000^(2c / E) for column c."""
    column = np.arange(width)
    power = column if exponent == "doubled" else column // 2
    return positions[:, None] * 10000.0 ** (-2.0 * power / width)


def interleaved(angles: Any) -> Any:
    """Sine in even columns, cosine in odd ones."""
    return np.where(np.arange(angles.shape[1]) % 2 == 0, np.sin(angles), np.cos(angles))


# --- biases by distance -----------------------------------------------------------------------------------------------


def slopes(num_heads: int) -> Any:
    """2^(-8h / P), then every other slope of 2 P heads."""
    power = 2 ** int(math.log2(num_heads))
    first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    return np.concatenate([first, 2.0 ** (-4 * np.arange(1, 2 * (num_heads - power), 2) / power)])


def relative(query_length: int, key_length: int, offset: int) -> Any:
    """j - (i + offset)."""
    return np.arange(key_length) - np.arange(query_length)[:, None] - offset


def alibi_by(slopes: Function = slopes, relative: Function = relative) -> Function:
    """`alibi_bias` from `slopes(num_heads)` and `relative(query_length, key_length, offset)`."""

    def alibi_bias(
        num_heads: int, query_length: int, key_length: int, *, offset: int = 0, dtype: str = "float32"
    ) -> Any:
        distance = relative(query_length, key_length, offset)
        return (slopes(num_heads)[:, None, None] * distance)[None].astype(right_dtype(dtype))

    return alibi_bias


def bucket(relative: Any, rows: int, bidirectional: bool, furthest: int) -> Any:
    """Of each distance, one integer comparison after the other."""
    size = rows // 2 if bidirectional else rows
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    e = size // 2
    late = np.array([first_late(e, size - e, k, furthest) for k in range(1, size - e)], int)
    found = np.minimum(distance, e) + (distance[..., None] >= late).sum(axis=-1)
    return found + size * (relative > 0) if bidirectional else found


def first_late(e: int, power: int, k: int, furthest: int) -> int:
    """The smallest distance n with n^power >= furthest^k e^(power - k); a float is right to within one or two."""
    bound, n = furthest**k * e ** (power - k), int(e * (furthest / e) ** (k / power)) - 2
    return next(i for i in range(n, n + 6) if i**power >= bound)


def by_heads(rows: Any) -> Any:
    """[Q, K, H] to [1, H, Q, K]."""
    return np.moveaxis(rows, -1, 0)[None].copy()


def relative_bias_by(
    bucket: Function = bucket,
    relative: Function = relative,
    by_heads: Function = by_heads,
    table_bar: Function = relative_position_bias_vjp,
) -> Function:
    """`relative_position_bias` from `bucket(relative, rows, bidirectional, furthest)`, and what is in it."""

    def relative_position_bias(
        table: Any, query_length: int, key_length: int, *, bidirectional: bool, furthest: int = 128, offset: int = 0
    ) -> Any:
        places = bucket(relative(query_length, key_length, offset), len(table), bidirectional, furthest)
        return by_heads(table[places])

    return declare(vjp=table_bar)(relative_position_bias)


MERGING, PROJECTING, NETWORK, GATED = Merging(), Projecting(), Network(), Gated()
gated_feed_forward = gated_feed_forward_by(GATED)
alibi_bias, relative_position_bias = alibi_by(), relative_bias_by()
merge_attention = merge_attention_by(MERGING)
multi_head_attention = multi_head_attention_by(PROJECTING)
feed_forward = feed_forward_by(NETWORK)
embedding = embedding_by(taken)
sinusoidal_positions = sinusoidal_by(angles, interleaved)
