"""Equinox: multi-head attention and norms. Its modules take one example, and `jax.vmap` gives them a batch."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import adapt_layer_norm, adapt_rms_norm, make_peer
from conformance.peers.heads import join_heads

if TYPE_CHECKING:
    import jax

    from specification.parameters import MultiHeadAttention


@declare(["no-gqa", "no-empty"])
def heads(
    parameters: MultiHeadAttention,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    num_heads: int,
    mask: jax.Array | None = None,
) -> Any:
    """`equinox.nn.MultiheadAttention`."""
    import equinox
    import jax

    parts = [join_heads(part, jax.numpy.concatenate) for part in parameters[:3]]
    parts.append(parameters.output)
    sizes: dict[str, Any] = {"query_size": query.shape[-1], "key_size": key.shape[-1], "value_size": value.shape[-1]}
    sizes |= {"qk_size": parts[0].weight.shape[1] // num_heads, "vo_size": parts[2].weight.shape[1] // num_heads}
    names = ("query", "key", "value", "output")
    biased = {f"use_{name}_bias": part.bias is not None for name, part in zip(names, parts, strict=True)}
    made = equinox.nn.MultiheadAttention(
        num_heads, output_size=parts[3].weight.shape[1], **sizes, **biased, key=jax.random.PRNGKey(0)
    )
    for name, part in zip(names, parts, strict=True):
        made = equinox.tree_at(attrgetter(f"{name}_proj.weight"), made, part.weight.T)
        if part.bias is not None:
            made = equinox.tree_at(attrgetter(f"{name}_proj.bias"), made, part.bias)
    # What one example gets of the mask, [Q, K] or [H, Q, K], and the axis along which it differs by example.
    shared = mask is None or mask.ndim == 2 or mask.shape[0] == 1
    one, axis = mask[0] if shared and mask is not None and mask.ndim == 4 else mask, None if shared else 0
    if one is not None and one.ndim == 3 + (axis is not None) and one.shape[-3] == 1:
        one = jax.numpy.broadcast_to(one, (*one.shape[:-3], num_heads, *one.shape[-2:]))
    return jax.vmap(lambda q, k, v, m: made(q, k, v, mask=m), in_axes=(0, 0, 0, axis))(query, key, value, one)


def norm(kind: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, **eps: float) -> Any:
    import equinox
    import jax

    made = getattr(equinox.nn, kind)(weight.shape, use_bias=bias is not None, **eps)
    made = equinox.tree_at(lambda m: m.weight, made, weight)
    made = made if bias is None else equinox.tree_at(lambda m: m.bias, made, bias)
    call = made
    for _ in range(x.ndim - weight.ndim):
        call = jax.vmap(call)
    return call(x)


layer_norm = adapt_layer_norm(partial(norm, "LayerNorm"), "eps")
rms_norm = adapt_rms_norm(partial(norm, "RMSNorm"), "eps")

peer = partial(make_peer, "Equinox nn.", __name__, "jax", ("equinox", "jax"))
PEERS = (
    peer("MultiheadAttention", "heads", "multi_head_attention"),
    peer("LayerNorm", "layer_norm", "layer_norm"),
    peer("RMSNorm", "rms_norm", "rms_norm"),
)
