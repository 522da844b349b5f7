"""Attention in JAX (rules ATT-1 to ATT-14, MHA-1, MHA-2; "Attention Is All You Need", section 3.2).

    scores  = softcap(scale * query . key) + bias        for the pairs that the mask allows, and for no others
    weights = softmax over the allowed keys of a row     0 where the mask forbids, and in a row that allows nothing
    output  = weights . value

Shapes and dtypes as in the definition, and checked while tracing. NumPy arrays are taken too, and results are always
JAX arrays. float64 needs `jax.enable_x64`: without it JAX would narrow it to float32 silently, so it is a TypeError.

Gradients are `jax.grad`'s, through two products that know the mask (`pair_products`, `allowed_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Bool, Float

from jax_impl import engines
from jax_impl.blocked import Inputs, Literal, blocked_attention
from jax_impl.masks import allowed_pairs, checked_mask
from specification import Linear, MultiHeadAttention, checks
from specification.dtypes import compute_dtype_name, dtype_name

P = ParamSpec("P")
R = TypeVar("R")

HIGHEST = jax.lax.Precision.HIGHEST
"""Every product asks for it: by default JAX multiplies float32 as TF32 on GPUs and as bfloat16 on TPUs."""


# --- the pieces -------------------------------------------------------------------------------------------------------

# They are compiled one by one, for calls outside jax.jit: eager JAX compiles every operation for every new shape, and
# there are about ninety of them in one call of attention with its gradients. Compiled as one they would be made anew
# for every new combination of shapes, mask and options: with what is on file from other calls that takes more than
# twice as long.


@jax.custom_vjp
@jax.jit
def pair_products(
    left: Float[jax.Array, "*lead Q D"],
    right: Float[jax.Array, "*lead K D"],
    allowed: Bool[jax.Array, "*#lead #Q #K"],
) -> Float[jax.Array, "*lead Q K"]:
    """left . right for the allowed pairs, and 0 for the others, whatever they hold (MASK-7)."""
    return jnp.where(allowed, jnp.matmul(left, right.mT, precision=HIGHEST), 0)


@jax.custom_vjp
@jax.jit
def allowed_sum(
    weights: Float[jax.Array, "*lead Q K"],
    values: Float[jax.Array, "*lead K V"],
    allowed: Bool[jax.Array, "*#lead #Q #K"],
) -> Float[jax.Array, "*lead Q V"]:
    """weights @ values, summed over the allowed keys only; `weights` is 0 at the others.

    The sum runs over the finite values, since 0 * NaN = NaN, and an entry that an allowed NaN or infinity reaches
    becomes NaN (ATT-10). Both are always computed: a traced function cannot look whether there is any.
    """
    finite = jnp.isfinite(values)
    output = jnp.matmul(weights, jnp.where(finite, values, 0), precision=HIGHEST)
    allowed = jnp.broadcast_to(allowed, weights.shape).astype(values.dtype)
    reached = jnp.matmul(allowed, (~finite).astype(values.dtype), precision=HIGHEST) > 0
    return jnp.where(reached, jnp.nan, output)


# Each of the two is the other's gradient. JAX's own rule for a product would multiply the zeros of forbidden pairs by
# the NaN behind them. Reverse mode may be nested; the price is that forward mode has no rule.


@jax.jit
def pair_products_backward(saved: Any, cotangent: Float[jax.Array, "*lead Q K"]) -> tuple[Any, Any, None]:
    left, right, allowed = saved
    cotangent = jnp.where(allowed, cotangent, 0)
    return allowed_sum(cotangent, right, allowed), allowed_sum(cotangent.mT, left, allowed.mT), None


@jax.jit
def allowed_sum_backward(saved: Any, cotangent: Float[jax.Array, "*lead Q V"]) -> tuple[Any, Any, None]:
    weights, values, allowed = saved
    return pair_products(cotangent, values, allowed), allowed_sum(weights.mT, cotangent, allowed.mT), None


pair_products.defvjp(lambda *inputs: (pair_products(*inputs), inputs), pair_products_backward)
allowed_sum.defvjp(lambda *inputs: (allowed_sum(*inputs), inputs), allowed_sum_backward)


@jax.jit
def attention_scores(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B H K D"],
    allowed: Bool[jax.Array, "#B #H #Q #K"],
    *,
    bias: Float[jax.Array, "#B #H #Q #K"] | None,
    scale: Any,
    softcap: Any,
) -> Float[jax.Array, "B H Q K"]:
    """softcap(scale * query . key) + bias for the allowed pairs, 0 for the others (ATT-1 to ATT-4)."""
    # The scale is on the query: of a product and the difference from its maximum XLA makes one rounding, and a large
    # score would lie far from the maximum that was rounded.
    query = query * jnp.asarray(resolve_scale(scale, query.shape[-1]), query.dtype)
    scores = pair_products(query, key, allowed)
    if softcap is not None:
        cap = jnp.asarray(softcap, scores.dtype)
        scores = cap * tanh(scores / cap)
    if bias is not None:
        scores = scores + jnp.where(allowed, bias, 0)
    return scores


@jax.custom_jvp
def tanh(x: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """tanh with the slope 1 - y^2; that of jnp.tanh, (g + g y) (1 - y), is NaN for an infinite gradient g and y < 0."""
    return jnp.tanh(x)


tanh.defjvps(lambda tangent, y, x: tangent * (1 - y**2))


@jax.jit
def softmax(
    scores: Float[jax.Array, "B H Q K"],
    allowed: Bool[jax.Array, "#B #H #Q #K"],
    sinks: Float[jax.Array, "H"] | None = None,
) -> tuple[Float[jax.Array, "B H Q K"], Float[jax.Array, "B H Q"]]:
    """Softmax over the allowed keys, and its log-sum-exp (ATT-5, ATT-6).

    No gradient runs through the maximum: it cancels out of both results, and would only leave rounding errors behind.
    """
    maximum = jnp.max(stop_gradient(scores), axis=-1, where=allowed, initial=-jnp.inf, keepdims=True)
    if sinks is not None:
        maximum = jnp.maximum(maximum, stop_gradient(sinks)[:, None, None])
    # An empty row's maximum is -inf; a finite number in its place avoids inf - inf and changes nothing else.
    maximum = jnp.where(maximum == -jnp.inf, 0, maximum)
    # Subtracting the maximum leaves the quotient as it is and keeps exp from overflowing.
    exponentials = jnp.exp(jnp.where(allowed, scores - maximum, -jnp.inf))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks[:, None, None] - maximum)
    # The total of an empty row is replaced before anything divides by it or takes its logarithm: selecting afterwards
    # would leave 0 * inf = NaN in the gradient.
    empty = total == 0
    total = jnp.where(empty, 1, total)
    weights = jnp.where(allowed, exponentials / total, 0)
    return weights, jnp.where(empty, -jnp.inf, maximum + jnp.log(total))[..., 0]


def fill_empty_rows(
    weights: Float[jax.Array, "B H Q K"], allowed: Bool[jax.Array, "#B #H #Q #K"], empty_rows: str
) -> tuple[Float[jax.Array, "B H Q K"], Bool[jax.Array, "#B #H #Q #K"]]:
    """Weights of the rows that may attend to nothing, and the pairs over which values are then summed (ATT-6)."""
    if empty_rows == "zero":
        return weights, allowed
    empty = ~jnp.any(jnp.broadcast_to(allowed, weights.shape), axis=-1, keepdims=True)
    filling = jnp.nan if empty_rows == "nan" else 1 / max(weights.shape[-1], 1)
    return jnp.where(empty, filling, weights), allowed | empty


def resolve_scale(scale: Any, width: int) -> Any:
    """1 / sqrt(D) unless another scale is given (ATT-1)."""
    return 1 / math.sqrt(width) if scale is None else scale


@partial(jax.jit, static_argnums=1)
def repeat_heads(array: Float[jax.Array, "B G K W"], num_heads: int) -> Float[jax.Array, "B H K W"]:
    """One key or value head for every query head: query head h reads head h // (H / G) (ATT-7)."""
    return jnp.repeat(array, num_heads // max(array.shape[1], 1), axis=1)


def widen(array: Float[jax.Array, "..."] | None) -> Any:
    """The array in the dtype in which everything is computed: float32, or float64 for float64 (ATT-9)."""
    if array is None:
        return None
    wide = compute_dtype_name(dtype_name(array))
    require_dtype(wide)
    return cast(array, wide)


def cast(array: Float[jax.Array, "..."], dtype: Any) -> Float[jax.Array, "..."]:
    """The array in that dtype; itself if it has it, where jax.vjp outside jax.jit would copy it, and its gradient."""
    if isinstance(array, jax.Array) and array.dtype == dtype and not array.weak_type:
        return array
    return jnp.asarray(array, dtype)


def require_dtype(name: Any) -> None:
    """Refuse float64 and other dtypes of 64 bits where JAX would silently give 32 instead."""
    if jax.dtypes.canonicalize_dtype(name) != name:
        raise TypeError(f"{name} needs jax.enable_x64, without which JAX narrows it")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """jax.jit of a function of arrays, which takes whatever `jnp.asarray` takes, and refuses what would be narrowed."""
    inner = jax.jit(function)

    def given(array: Any) -> Any:
        if isinstance(array, jax.Array):
            return array
        if hasattr(array, "dtype"):
            require_dtype(dtype_name(array))
        return jnp.asarray(array)

    @wraps(function)
    def outer(*arrays: P.args, **more: P.kwargs) -> R:
        return inner(*jax.tree.map(given, arrays), **jax.tree.map(given, more))

    return outer


@partial(jax.jit, static_argnums=(2, 3))
def visible_pairs(
    mask: Any,
    bias: Float[jax.Array, "..."] | None,
    query_shape: tuple[int, int, int],
    key_length: int,
) -> tuple[Bool[jax.Array, "B H Q K"], Float[jax.Array, "B H Q K"] | None]:
    """Which pairs count, and the bias; -inf in the bias forbids a pair (ATT-3).

    Both come in their full shape: outside `jax.jit` JAX compiles each of the pieces anew for every shape it meets.
    """
    shape = (*query_shape, key_length)
    allowed = jnp.broadcast_to(allowed_pairs(mask, query_shape[2], key_length), shape)
    if bias is None:
        return allowed, None
    bias = jnp.broadcast_to(bias if bias.ndim == 4 else bias[None, None], shape)
    return allowed & (bias != -jnp.inf), bias


def dropout_factor(keep: Bool[jax.Array, "..."], rate: Any, dtype: Any) -> Float[jax.Array, "..."]:
    """keep / (1 - rate), with which weights are multiplied; no mask, so 0 * NaN is NaN (ATT-11)."""
    return jnp.where(keep, 1 / (1 - jnp.asarray(rate, dtype)), 0)


# --- the operations ---------------------------------------------------------------------------------------------------


def attention(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    value: Float[jax.Array, "B G K V"],
    *,
    mask: Any = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    dropout_keep: Bool[jax.Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
    engine: str = "auto",
) -> Float[jax.Array, "B H Q V"]:
    """output = softmax(softcap(scale * query . key) + bias) . value, over the keys that the mask allows.

    mask: a description or a boolean array, True = may attend; it may be traced, and is a pytree. `empty_rows` is
    static; scale, softcap and dropout_rate may be traced, and their values are checked only where they can be read.
    engine: "reference" is `literal_attention`, "blocked" the same in blocks with a memory of O(Q + K), "auto" the
    faster of those that can take the call (`explain_engine`).

    Returns [B, H, Q, V] in the dtype of query.
    """
    checks.attention(
        query, key, value, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout_keep=dropout_keep, dropout_rate=dropout_rate, empty_rows=empty_rows,
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    inputs = Inputs(query, key, value, mask, bias, scale, softcap, sinks)
    require_dtype(compute_dtype_name(dtype_name(query)))
    chosen = engines.engine_for(engine, inputs, dropout_keep, empty_rows).engine
    if chosen == "reference":
        output, _ = literal_attention(inputs, dropout_keep, dropout_rate, empty_rows)
    else:
        output, _ = blocked_attention(LITERAL._replace(limits=engines.LIMITS), engines.in_blocks(inputs))
    return cast(output, query.dtype)


def literal_attention(
    inputs: Inputs, dropout_keep: Any = None, dropout_rate: Any = 0.0, empty_rows: str = "zero"
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q 1"]]:
    """Output and log-sum-exp as the definition has them, unrounded; all [B, H, Q, K] scores stand in memory.

    The log-sum-exp is a column [B, H, Q, 1], as the blocks hold it: theirs goes beside scores [B, H, Q, K].
    """
    (B, H, Q, _), K = inputs.query.shape, inputs.key.shape[2]
    query, key, value = widen(inputs.query), repeat_heads(widen(inputs.key), H), repeat_heads(widen(inputs.value), H)
    allowed, bias = visible_pairs(inputs.mask, widen(inputs.bias), (B, H, Q), K)
    scores = attention_scores(query, key, allowed, bias=bias, scale=inputs.scale, softcap=inputs.softcap)
    weights, logsumexp = softmax(scores, allowed, widen(inputs.sinks))
    weights, reach = fill_empty_rows(weights, allowed, empty_rows)
    if dropout_keep is not None:
        weights = weights * dropout_factor(dropout_keep, dropout_rate, weights.dtype)
    return allowed_sum(weights, value, reach), logsumexp[..., None]


LITERAL = Literal(literal_attention, pair_products, allowed_sum)
"""What the blocks fall back on."""


def attention_weights(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    empty_rows: str = "zero",
) -> Float[jax.Array, "B H Q K"]:
    """The weights that `attention` gives to every key, before dropout: [B, H, Q, K] in the dtype of query (ATT-14)."""
    checks.attention(
        query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks, empty_rows=empty_rows
    )  # fmt: skip
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask, dtype = checked_mask(mask, Q, K, B, H), query.dtype
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, (B, H, Q), K)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    weights, _ = softmax(scores, allowed, sinks)
    weights, _ = fill_empty_rows(weights, allowed, empty_rows)
    return cast(weights, dtype)


def attention_logsumexp(
    query: Float[jax.Array, "B H Q D"],
    key: Float[jax.Array, "B G K D"],
    *,
    mask: Any = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
) -> Float[jax.Array, "B H Q"]:
    """log of the sum of exp(scores) over the allowed keys, and of exp(sink) if there is one: [B, H, Q] (ATT-14).

    In float32, or in float64 for float64.
    """
    checks.attention(query, key, None, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    (B, H, Q, _), K = query.shape, key.shape[2]
    mask = checked_mask(mask, Q, K, B, H)
    query, key, bias, sinks = widen(query), repeat_heads(widen(key), H), widen(bias), widen(sinks)
    allowed, bias = visible_pairs(mask, bias, (B, H, Q), K)
    scores = attention_scores(query, key, allowed, bias=bias, scale=scale, softcap=softcap)
    _, logsumexp = softmax(scores, allowed, sinks)
    return logsumexp


def merge_attention(
    outputs: Sequence[Float[jax.Array, "B H Q V"]], logsumexps: Sequence[Float[jax.Array, "B H Q"]]
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q"]]:
    """Attention over all keys, from its results over disjoint sets of them (ATT-14).

    Returns the output in the dtype of the parts', and the log-sum-exp in float32, or in float64 for float64.
    """
    checks.merge(outputs, logsumexps)
    return merge(tuple(outputs), tuple(logsumexps))


@compiled
def merge(
    outputs: tuple[Float[jax.Array, "B H Q V"], ...], logsumexps: tuple[Float[jax.Array, "B H Q"], ...]
) -> tuple[Float[jax.Array, "B H Q V"], Float[jax.Array, "B H Q"]]:
    """`merge_attention` of what has been checked."""
    parts = jnp.stack([widen(output) for output in outputs], axis=-2)
    scores = jnp.stack([widen(logsumexp) for logsumexp in logsumexps], axis=-1)
    # Merging is attention once more: one query, one key for each part, the parts' log-sum-exps as its scores.
    seen = scores != -jnp.inf
    weights, logsumexp = softmax(jnp.where(seen, scores, 0), seen)
    output = allowed_sum(weights[..., None, :], parts, seen[..., None, :])[..., 0, :]
    return cast(output, outputs[0].dtype), logsumexp


# --- multi-head attention ---------------------------------------------------------------------------------------------


@compiled
def linear(parameters: Linear, x: Float[jax.Array, "... I"]) -> Float[jax.Array, "... O"]:
    """x @ weight + bias, rounded once to the dtype of x (MHA-1)."""
    output = jnp.matmul(widen(x), widen(parameters.weight), precision=HIGHEST)
    if parameters.bias is not None:
        output = output + widen(parameters.bias)
    return cast(output, x.dtype)


def join_heads(projections: Linear | Sequence[Linear]) -> Linear:
    """One projection out of per-head projections: their columns side by side, in head order (MHA-2)."""
    if isinstance(projections, Linear):
        return projections
    checks.join_heads(projections)
    require_dtype(dtype_name(projections[0].weight))
    weight = jnp.concatenate([head.weight for head in projections], axis=1)
    if projections[0].bias is None:
        return Linear(weight)
    return Linear(weight, jnp.concatenate([head.bias for head in projections]))


@partial(jax.jit, static_argnums=1)
def split_heads(x: Float[jax.Array, "B T HW"], num_heads: int) -> Float[jax.Array, "B H T W"]:
    """Head h is the h-th block of consecutive columns (MHA-1)."""
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


@jax.jit
def concatenate_heads(x: Float[jax.Array, "B H T W"]) -> Float[jax.Array, "B T HW"]:
    """The heads' columns side by side again, in order."""
    B, H, T, width = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * width)


def multi_head_attention(
    parameters: MultiHeadAttention,
    query: Float[jax.Array, "B Q E"],
    key: Float[jax.Array, "B K E_key"],
    value: Float[jax.Array, "B K E_value"],
    *,
    num_heads: int,
    mask: Any = None,
    bias: Float[jax.Array, "..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[jax.Array, "H"] | None = None,
    dropout_keep: Bool[jax.Array, "B H Q K"] | None = None,
    dropout_rate: float = 0.0,
    empty_rows: str = "zero",
) -> Float[jax.Array, "B Q E_out"]:
    """output(concatenated heads of attention(query(x), key(y), value(z))), each a linear projection (MHA-1, MHA-2).

    `parameters` is a pytree as it stands, so that `jax.grad` gives its gradients in the same structure. num_heads is
    static. Other arguments as in `attention`.
    """
    checks.structure("parameters", parameters, MultiHeadAttention)
    projections: Any = MultiHeadAttention._make([*map(join_heads, parameters[:3]), parameters.output])
    H, G, _ = checks.multi_head_attention(parameters, projections, query, key, value, num_heads)
    output = attention(
        split_heads(linear(projections.query, query), H),
        split_heads(linear(projections.key, key), G),
        split_heads(linear(projections.value, value), G),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_keep=dropout_keep,
        dropout_rate=dropout_rate,
        empty_rows=empty_rows,
    )
    return linear(projections.output, concatenate_heads(output))
