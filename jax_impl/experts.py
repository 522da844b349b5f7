"""Mixtures of experts in JAX (rules MOE-1 to MOE-5), as `reference_numpy/experts.py` defines them.

Tokens are sorted by expert, and each expert multiplies those that it takes. Shapes are static here, so the rows come in
blocks that are one expert's each, and a loop ends after the last block that has rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Bool, Float, Integer

from jax_impl.dtypes import HIGHEST, cast, compile_with, compiled, widen
from jax_impl.engines.varying import axes_of, vary
from jax_impl.feed_forward import ACTIVATIONS, silu_steps
from jax_impl.multi_head_attention import linear
from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts, Routing, checks

__all__ = ["mixture_of_experts", "route"]

PIECE = 2**22
"""Numbers of a matrix that one product takes: 16 MB in float32. Smaller pieces have more products to start, and larger
ones are slow to copy (jax 0.10 on two cores of a Xeon)."""
OPTIONS = ("chosen", "scoring", "groups", "chosen_groups", "group_score", "weighting", "scale")


@compiled
def router_logits(x: Float[jax.Array, "*tokens E"], router: Linear) -> Float[jax.Array, "*tokens X"]:
    """x @ weight + bias, which stays in the compute dtype (MOE-1)."""
    logits = jnp.matmul(widen(x), widen(router.weight), precision=HIGHEST)
    return logits if router.bias is None else logits + widen(router.bias)


def softmax(logits: Float[jax.Array, "*tokens X"]) -> Float[jax.Array, "*tokens X"]:
    """exp(logit) / sum of exp(logits); the maximum is a constant to the gradient."""
    exponentials = jnp.exp(logits - stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


def expert_scores(logits: Float[jax.Array, "*tokens X"], scoring: str) -> Float[jax.Array, "*tokens X"]:
    """The scores of all experts, each of which a sigmoid makes by itself (MOE-1)."""
    if scoring == "softmax":
        return softmax(logits)
    return jax.nn.sigmoid(logits) if scoring == "sigmoid" else logits


def largest(numbers: Float[jax.Array, "*tokens X"], count: int) -> Integer[jax.Array, "*tokens C"]:
    """Where the largest numbers stand, in ascending order; of equal ones those with the lower indices (MOE-2)."""
    order = jnp.argsort(-numbers, axis=-1, stable=True)
    return jnp.sort(order[..., :count], axis=-1)


def choose_experts(
    preferences: Float[jax.Array, "*tokens X"], chosen: int, groups: int, chosen_groups: int, group_score: str
) -> tuple[Integer[jax.Array, "*tokens C"], Bool[jax.Array, "*tokens 1"]]:
    """The experts with the largest preferences in the best groups, and where a NaN leaves no choice (MOE-2).

    Of a token with a NaN the first experts are chosen.
    """
    size = preferences.shape[-1] // groups
    preferences = stop_gradient(preferences)
    grouped = preferences.reshape(*preferences.shape[:-1], groups, size)
    best = jnp.sort(grouped, axis=-1)[..., -2 if group_score == "two_largest" else -1 :]
    group_scores = jnp.sum(best, axis=-1)
    some = largest(group_scores, chosen_groups)
    candidates = jnp.take_along_axis(grouped, some[..., None], axis=-2)
    inside = largest(candidates.reshape(*some.shape[:-1], chosen_groups * size), chosen)
    indices = jnp.take_along_axis(some, inside // size, axis=-1) * size + inside % size
    spoiled = jnp.isnan(preferences).any(-1, keepdims=True) | jnp.isnan(group_scores).any(-1, keepdims=True)
    return jnp.where(spoiled, jnp.arange(chosen, dtype=indices.dtype), indices), spoiled


def expert_weights(
    logits: Float[jax.Array, "*tokens C"], scores: Float[jax.Array, "*tokens C"], weighting: str
) -> Float[jax.Array, "*tokens C"]:
    """The weights of the chosen experts, by their logits and scores; 0 where the scores sum to 0 (MOE-3)."""
    if weighting == "softmax":
        return softmax(logits)
    if weighting == "scores":
        return scores
    total = jnp.sum(scores, axis=-1, keepdims=True)
    return jnp.where(total == 0, 0, scores / jnp.where(total == 0, 1, total))


@compile_with(*OPTIONS)
def route_by_logits(
    logits: Float[jax.Array, "*tokens X"],
    choice_bias: Float[jax.Array, "X"] | None,
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
    chosen_logits, chosen_scores = (jnp.take_along_axis(rows, indices, axis=-1) for rows in (logits, scores))
    weights = expert_weights(chosen_logits, chosen_scores, weighting) * float(scale)
    # A product, so that the NaN reaches the gradient too.
    return Routing(indices, weights * cast(jnp.where(spoiled, math.nan, 1.0), weights.dtype), scores)


def route(
    x: Float[jax.Array, "... E"],
    router: Linear,
    *,
    chosen: int,
    scoring: str = "softmax",
    choice_bias: Float[jax.Array, "X"] | None = None,
    groups: int = 1,
    chosen_groups: int = 1,
    group_score: str = "two_largest",
    weighting: str = "normalized",
    scale: float = 1.0,
) -> Routing:
    """Choose experts for every token on its own, and weigh them (MOE-1 to MOE-3).

    All but x, router and choice_bias is static.

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
        New arrays: indices [..., chosen], int32 (int64 with `jax.enable_x64`), in ascending order; weights
        [..., chosen] and scores [..., X] in the compute dtype. Where any score is NaN, so are the token's weights, and
        its indices count from 0.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes, names or numbers that are not as described.
    """
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.route(x, router, choice_bias, **options)
    return route_by_logits(router_logits(x, router), widen(choice_bias), **options | {"scale": float(scale)})


def spread(parts: Float[jax.Array, "*tokens C"], indices: Integer[jax.Array, "*tokens C"], experts: int) -> Any:
    """The parts of the chosen experts among those of all, with 0 for the others."""
    whole = jnp.zeros((*parts.shape[:-1], experts), parts.dtype)
    return jnp.put_along_axis(whole, indices, parts, axis=-1, inplace=False)


def taken_places(
    indices: Integer[jax.Array, "N C"], experts: int, real: Bool[jax.Array, "N"], capacity: int | None
) -> Bool[jax.Array, "N X"]:
    """Which expert takes which token: those that chose it, up to its capacity the first of them (MOE-5)."""
    places = jnp.any(indices[:, :, None] == jnp.arange(experts), axis=1) & real[:, None]
    return places if capacity is None else places & (jnp.cumsum(places, axis=0) <= capacity)


@compiled
def clamped_gate(gate: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """g * sigmoid(1.702 g) with g = min(gate, 7), and its limit 0 at -infinity. NaN stays NaN."""
    return silu_steps(1.702 * jnp.where(gate > 7, 7, gate)) / 1.702


def clamped_value(value: Float[jax.Array, "..."]) -> Float[jax.Array, "..."]:
    """The value between -7 and 7, and 1 more. NaN stays NaN."""
    return jnp.where(jnp.abs(value) > 7, jnp.copysign(7, stop_gradient(value)), value) + 1


def expert_network(
    parameters: FeedForward | GatedFeedForward,
    x: Float[jax.Array, "... E"],
    activation: str,
    project: Callable[[Linear, Any], Any] = linear,
) -> Float[jax.Array, "... E_out"]:
    """One feed-forward network, with GPT-OSS's activation too (MOE-4)."""
    hidden = widen(project(parameters.inner, x))
    if isinstance(parameters, FeedForward):
        hidden = ACTIVATIONS[activation](hidden)
    elif activation == "clamped_swiglu":
        hidden = clamped_gate(widen(project(parameters.gate, x))) * clamped_value(hidden)
    else:
        hidden = ACTIVATIONS[activation](widen(project(parameters.gate, x))) * hidden
    return project(parameters.outer, cast(hidden, x.dtype))


class Blocks(NamedTuple):
    """Rows that are sorted by expert, in blocks of one size that are one expert's each."""

    places: Integer[jax.Array, "N C"]
    """The row of each token's part; one past all rows for a part that is not computed."""
    tokens: Integer[jax.Array, "M S"]
    """The token of each row, N of a row that only fills a block."""
    owners: Integer[jax.Array, "M"]
    """The expert of each block; the number of experts for a block that is not used."""
    used: Integer[jax.Array, ""]
    """How many blocks have rows. They are the first ones."""


def block_size(tokens: int, chosen: int, experts: int) -> int:
    """Return the mean number of an expert's rows and a deviation, as a multiple of 4: at most 256, and at most tokens.

    Where tokens choose at random, the rows of an expert are about a Poisson number, whose deviation is the mean's root.
    So most experts have one block: a second one reads the matrix once more.
    """
    mean = tokens * chosen / experts
    return min(4 * max(math.ceil((mean + math.sqrt(mean)) / 4), 1), 256, max(tokens, 1))


def sort_tokens(indices: Integer[jax.Array, "N C"], places: Bool[jax.Array, "N X"]) -> Blocks:
    """Sort the parts of tokens by the expert that computes them, those of one expert in the order of tokens."""
    (N, C), X = indices.shape, places.shape[1]
    size = block_size(N, C, X)
    blocks = max(min(N * C, (N * C + X * (size - 1)) // size), 1)  # also if each expert leaves one row for its last
    of_experts = -(-jnp.sum(places, axis=0) // size)
    ends = jnp.cumsum(of_experts)
    rows = jnp.cumsum(places, axis=0) - 1 + (ends - of_experts) * size
    taken, rows = (jnp.take_along_axis(array, indices, axis=1) for array in (places, rows))
    rows = jnp.where(taken, rows, blocks * size)
    tokens = jnp.full(blocks * size, N).at[rows].set(jnp.arange(N)[:, None], mode="drop")
    owners = jnp.searchsorted(ends, jnp.arange(blocks), side="right")
    return Blocks(rows, tokens.reshape(blocks, size), owners, ends[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_product(
    turned: bool,
    rows: Float[jax.Array, "M S I"],
    stack: Float[jax.Array, "X I O"],
    owners: Integer[jax.Array, "M"],
    used: Integer[jax.Array, ""],
) -> Float[jax.Array, "M S O"]:
    """rows @ stack[owner] for each block, in the dtype of the rows. Nothing reads an expert without rows.

    turned: multiply by the transposed matrices, of a stack [X, O, I].
    """

    def multiply(i: Any, output: jax.Array) -> jax.Array:
        return output.at[i].set(stacked_product(turned, rows[i], stack, owners[i]))

    output = vary(jnp.zeros((*rows.shape[:2], stack.shape[1 if turned else 2]), rows.dtype), axes_of(rows, stack))
    return jax.lax.fori_loop(0, used, multiply, output)


def stacked_product(
    turned: bool, x: Float[jax.Array, "S I"], stack: Float[jax.Array, "X I O"], expert: Integer[jax.Array, ""]
) -> Float[jax.Array, "S O"]:
    """x @ stack[expert], or x @ stack[expert].T of a stack [X, O, I], a few rows of the matrix at a time.

    On CPUs, XLA copies the part of a stack that a product takes.
    """
    height, width = stack.shape[1:]
    piece = max(PIECE // max(width, 1), 1)

    def multiply(start: Any, count: int, output: jax.Array) -> jax.Array:
        place = [jnp.asarray(index, int) for index in (expert, start, 0)]  # of one dtype, also with 64 bits
        matrix = widen(jax.lax.dynamic_slice(stack, place, (1, count, width))[0])
        if turned:
            part = jnp.matmul(x, matrix.T, precision=HIGHEST)
            return jax.lax.dynamic_update_slice(output, part, (0, start))
        columns = jax.lax.dynamic_slice_in_dim(x, start, count, axis=1)
        return output + jnp.matmul(columns, matrix, precision=HIGHEST)

    whole, rest = divmod(height, piece)
    output = vary(jnp.zeros((len(x), height if turned else width), x.dtype), axes_of(x, stack, expert))
    if whole > 0:  # the body is traced even if it never runs
        output = jax.lax.fori_loop(0, whole, lambda i, output: multiply(i * piece, piece, output), output)
    return multiply(whole * piece, rest, output) if rest > 0 else output


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_outer(
    experts: int,
    left: Float[jax.Array, "M S A"],
    right: Float[jax.Array, "M S B"],
    owners: Integer[jax.Array, "M"],
    used: Integer[jax.Array, ""],
) -> Float[jax.Array, "X A B"]:
    """left.mT @ right, added up over the blocks of each expert: 0 where it has none."""

    def add(i: Any, output: jax.Array) -> jax.Array:
        return output.at[owners[i]].add(jnp.matmul(left[i].T, right[i], precision=HIGHEST))

    output = vary(jnp.zeros((experts, left.shape[-1], right.shape[-1]), left.dtype), axes_of(left, right))
    return jax.lax.fori_loop(0, used, add, output)


def grouped_product_forward(turned: bool, *inputs: jax.Array) -> tuple[jax.Array, Any]:
    return grouped_product(turned, *inputs), inputs


def grouped_product_backward(turned: bool, saved: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    rows, stack, *blocks = saved
    pair = (cotangent, rows) if turned else (rows, cotangent)
    of_stack = grouped_outer(len(stack), *pair, *blocks)
    return grouped_product(not turned, cotangent, stack, *blocks), cast(of_stack, stack.dtype), None, None


def grouped_outer_forward(experts: int, *inputs: jax.Array) -> tuple[jax.Array, Any]:
    return grouped_outer(experts, *inputs), inputs


def grouped_outer_backward(experts: int, saved: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    left, right, *blocks = saved
    of_left = grouped_product(True, right, cotangent, *blocks)
    return of_left, grouped_product(False, left, cotangent, *blocks), None, None


grouped_product.defvjp(grouped_product_forward, grouped_product_backward)
grouped_outer.defvjp(grouped_outer_forward, grouped_outer_backward)


@partial(jax.jit, static_argnums=(5, 6))
def sorted_sum(
    experts: FeedForward | GatedFeedForward,
    tokens: Float[jax.Array, "N E"],
    indices: Integer[jax.Array, "N C"],
    weights: Float[jax.Array, "N C"],
    places: Bool[jax.Array, "N X"],
    activation: str,
    dtype: Any,
) -> Float[jax.Array, "N E_out"]:
    """The results of the experts for the tokens that they take, times the weights, by ascending index (MOE-4)."""
    blocks = sort_tokens(indices, places)
    filled = (blocks.tokens < len(tokens))[..., None]

    def project(stack: Linear, x: jax.Array) -> jax.Array:
        output = grouped_product(False, widen(x), stack.weight, blocks.owners, blocks.used)
        if stack.bias is not None:
            output = output + widen(stack.bias).at[blocks.owners].get(mode="fill", fill_value=0)[:, None]
        # Rows that fill a block get no gradient either, which would be 0 times an expert's infinity.
        return cast(jnp.where(filled, output, 0), x.dtype)

    rows = jnp.pad(tokens, ((0, 1), (0, 0)))[blocks.tokens]
    results = widen(expert_network(experts, cast(rows, dtype), activation, project))
    parts = results.reshape(-1, results.shape[-1]).at[blocks.places].get(mode="fill", fill_value=0)
    taken = blocks.places < results.shape[0] * results.shape[1]
    return jnp.sum(jnp.where(taken, weights, 0)[..., None] * parts, axis=1)


def mixture_of_experts(
    parameters: MixtureOfExperts,
    x: Float[jax.Array, "... E"],
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
    token_mask: Bool[jax.Array, "..."] | None = None,
) -> Float[jax.Array, "... E_out"]:
    """Add up the chosen experts' results for every token, each times its weight, and the shared one's (MOE-4, MOE-5).

    `parameters` is a pytree as it stands. All but parameters, x and token_mask is static.

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
    count = math.prod(x.shape[:-1])
    real = jnp.ones(count, bool) if token_mask is None else jnp.asarray(token_mask).reshape(count)
    # Tokens are widened before experts take them, so that their gradients are added up in the wider dtype.
    tokens = jnp.where(real[:, None], widen(x).reshape(count, x.shape[-1]), 0)
    logits = jnp.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, _ = route_by_logits(logits, widen(choice_bias), **options | {"scale": float(scale)})
    X = router.weight.shape[1]
    places = taken_places(indices, X, real, capacity)
    output = sorted_sum(experts, tokens, indices, weights, places, activation, jnp.dtype(x.dtype))
    if shared is not None:
        output = output + widen(expert_network(shared, cast(tokens, x.dtype), activation))
    output = jnp.where(real[:, None], output, 0)
    return cast(output, x.dtype).reshape(*x.shape[:-1], output.shape[-1])
