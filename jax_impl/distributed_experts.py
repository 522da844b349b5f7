"""Mixtures of experts over several ranks in JAX (DIST-6), inside `jax.shard_map`.

Every device of a mesh's axis is a rank. It holds tokens, and some consecutive experts (Lepikhin et al., arXiv
2006.16668), as many as every other one. Shapes are static here, so that there is a place for each token on each rank:
all of them go to all ranks, which take those that chose their experts, and one sum comes back from each.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from jax_impl.dtypes import cast, widen
from jax_impl.engines.varying import axes_of, vary
from jax_impl.experts import expert_network, route_by_logits, router_logits, sorted_sum, taken_places
from specification import MixtureOfExperts, checks
from specification.distributed import ranges_of_experts

__all__ = ["mixture_of_experts"]


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
    axis_name: str,
) -> Float[jax.Array, "... E_out"]:
    """Compute `mixture_of_experts` for this rank's tokens, with experts that are spread over the ranks (DIST-6).

    Each rank routes its own tokens, and sends all of them to every other rank, with the indices and weights of their C
    experts. The owner adds up its experts' results, each times its weight, and sends one sum back. The token's rank
    adds these sums in the order of ranks, and the shared network's result last. In the backward pass gradients take
    the same ways back.

    Bytes that a rank sends, for N tokens of its own in a dtype of n bytes, w = max(n, 4):

        forward     (R - 1) N (E n + C (w + 4) + E_out w)
        backward    (R - 1) N (E + C + E_out) w

    The backward pass also takes one sum over ranks for each array of the router and of the shared network. A rank holds
    the tokens of all ranks, and rows for the case that all of them choose its experts.

    Args:
        parameters: As in `experts.mixture_of_experts`, but `experts` are this rank's, the next ones after those of the
            rank before. The router, which has a column for each expert of all ranks, the choice bias and the shared
            network are the same on every rank.
        x: [..., E], this rank's tokens.
        chosen, scoring, groups, chosen_groups, group_score, weighting, scale, activation: As in
            `experts.mixture_of_experts`.
        capacity: How many tokens of all ranks an expert takes, the first in the order of ranks, and on each in the
            order of x; None for all.
        token_mask: [...], of this rank's tokens.
        axis_name: The mesh's axis along which the ranks stand.

    Returns:
        A new array [..., E_out] in the dtype of x, for this rank's tokens. Router and shared network have the
        gradient of the whole, the sum over ranks.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes, names or numbers that are not as described.
    """
    options: dict[str, Any] = {"chosen": chosen, "scoring": scoring, "groups": groups, "chosen_groups": chosen_groups}
    options |= {"group_score": group_score, "weighting": weighting, "scale": scale}
    checks.mixture_of_experts(parameters, x, activation, capacity, token_mask, on_ranks=True)
    router, experts, choice_bias, shared = parameters
    checks.route(x, router, choice_bias, **options)
    ranks, own, X = lax.axis_size(axis_name), len(experts.outer.weight), router.weight.shape[1]
    ranges_of_experts([own] * ranks, X)
    axes = axes_of(lax.axis_index(axis_name), parameters, x, token_mask)
    # The gradient of a cast to what varies is the sum over ranks, and that of widening rounds it once.
    router, shared = vary(jax.tree.map(widen, (router, shared)), axes)
    experts, x = vary((jax.tree.map(jnp.asarray, experts), jnp.asarray(x)), axes)
    count = math.prod(x.shape[:-1])
    real = jnp.ones(count, bool) if token_mask is None else jnp.asarray(token_mask).reshape(count)
    tokens = jnp.where(real[:, None], widen(x).reshape(count, x.shape[-1]), 0)
    logits = jnp.where(real[:, None], router_logits(tokens, router), 0)
    indices, weights, _ = route_by_logits(logits, widen(choice_bias), **options | {"scale": float(scale)})

    # What is no token, or is another rank's to compute, has an expert after the last, which takes nothing.
    indices = cast(jnp.where(real[:, None], indices, X), "int32")
    all_tokens = gather_tokens(axis_name, jnp.dtype(x.dtype), tokens)
    all_indices, all_weights = lax.all_gather((indices, weights), axis_name, tiled=True)
    local = all_indices - lax.axis_index(axis_name) * own
    local = jnp.where((local >= 0) & (local < own), local, own)
    places = taken_places(local, own + 1, jnp.ones(len(local), bool), capacity).at[:, own].set(False)
    sums = sorted_sum(experts, all_tokens, local, all_weights, places, activation, jnp.dtype(x.dtype))
    of_ranks = sums.reshape(ranks, count, sums.shape[-1])
    output, *rest = lax.all_to_all(of_ranks, axis_name, split_axis=0, concat_axis=0)
    for part in rest:
        output = output + part
    if shared is not None:
        output = output + widen(expert_network(shared, cast(tokens, x.dtype), activation))
    output = jnp.where(real[:, None], output, 0)
    return cast(output, x.dtype).reshape(*x.shape[:-1], output.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather_tokens(axis_name: str, dtype: Any, tokens: Float[jax.Array, "N E"]) -> Float[jax.Array, "S E"]:
    """The tokens of all ranks. They travel in a dtype that holds them, and gradients in that of their sum."""
    return widen(lax.all_gather(cast(tokens, dtype), axis_name, tiled=True))


def gather_tokens_forward(axis_name: str, dtype: Any, tokens: jax.Array) -> tuple[jax.Array, None]:
    return gather_tokens(axis_name, dtype, tokens), None


def gather_tokens_backward(axis_name: str, dtype: Any, saved: None, cotangent: jax.Array) -> tuple[jax.Array]:
    return (lax.psum_scatter(cotangent, axis_name, tiled=True),)


gather_tokens.defvjp(gather_tokens_forward, gather_tokens_backward)
