"""Flax: dot-product attention, multi-head attention and norms of `flax.linen` and of `flax.nnx`."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import adapt_layer_norm, adapt_rms_norm, make_peer
from conformance.peers.heads import join_heads, resize_case
from conformance.peers.peer import BROADCAST

if TYPE_CHECKING:
    import jax

    from specification.parameters import MultiHeadAttention

HEADS_LACK = ("no-gqa", "no-value_width", "no-empty")


@declare(["no-gqa"], layout="BTHD")
def linen_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None = None, bias: jax.Array | None = None
) -> Any:
    """`flax.linen.dot_product_attention`."""
    from flax import linen

    return linen.dot_product_attention(query, key, value, bias=bias, mask=mask)


@declare(["no-empty"], layout="BTHD")
def nnx_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None = None, bias: jax.Array | None = None
) -> Any:
    """`flax.nnx.dot_product_attention` with a module to store the weights in; without, it calls `jax.nn`'s."""
    from flax import nnx

    return nnx.dot_product_attention(query, key, value, bias=bias, mask=mask, module=nnx.Module())


def split_parameters(parameters: MultiHeadAttention, heads: int) -> dict[str, dict[str, Any]]:
    """Kernels [E, H, D] and biases [H, D] of the first three projections, kernel [H, D, E_out] of the last."""
    from jax import numpy

    split = {}
    for name in ("query", "key", "value"):
        part = join_heads(getattr(parameters, name), numpy.concatenate)
        split[name] = {"kernel": part.weight.reshape(part.weight.shape[0], heads, -1)}
        split[name] |= {} if part.bias is None else {"bias": part.bias.reshape(heads, -1)}
    weight, bias = parameters.output
    split["out"] = {"kernel": weight.reshape(heads, -1, weight.shape[1])}
    split["out"] |= {} if bias is None else {"bias": bias}
    return split


@declare(HEADS_LACK)
def linen_heads(
    parameters: MultiHeadAttention,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    num_heads: int,
    mask: jax.Array | None = None,
) -> Any:
    """`flax.linen.MultiHeadDotProductAttention`."""
    from flax import linen

    weight, bias = parameters.output
    module = linen.MultiHeadDotProductAttention(
        num_heads, qkv_features=weight.shape[0], out_features=weight.shape[1], use_bias=bias is not None
    )
    named = {"params": split_parameters(parameters, num_heads)}
    return module.apply(named, query, key, value, mask=mask, deterministic=True)


def linen_norm(kind: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, **options: object) -> Any:
    """With the dtype of x for its result."""
    from flax import linen

    axes = tuple(range(-weight.ndim, 0))
    options |= {"use_bias": bias is not None} if kind == "LayerNorm" else {}
    module = getattr(linen, kind)(dtype=x.dtype, reduction_axes=axes, feature_axes=axes, **options)
    return module.apply({"params": {"scale": weight} | ({} if bias is None else {"bias": bias})}, x)


linen_layer_norm_fast, linen_layer_norm_slow = (
    adapt_layer_norm(partial(linen_norm, "LayerNorm", use_fast_variance=fast), "epsilon") for fast in (True, False)
)
linen_rms_norm = adapt_rms_norm(partial(linen_norm, "RMSNorm"), "epsilon")


@functools.cache
def nnx_module(kind: str, size: int, **options: object) -> Any:
    from flax import nnx

    return nnx.split(getattr(nnx, kind)(size, rngs=nnx.Rngs(0), **options))[0]


def nnx_norm(kind: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, **options: object) -> Any:
    """With the dtype of x for its result."""
    from flax import nnx

    axes = tuple(range(-weight.ndim, 0))
    options |= {"use_bias": bias is not None} if kind == "LayerNorm" else {}
    graph = nnx_module(kind, weight.size, reduction_axes=axes, feature_axes=axes, dtype=str(x.dtype), **options)
    parameters = {"scale": nnx.Param(weight)} | ({} if bias is None else {"bias": nnx.Param(bias)})
    return nnx.merge(graph, nnx.State(parameters))(x)


nnx_layer_norm = adapt_layer_norm(partial(nnx_norm, "LayerNorm"), "epsilon")
nnx_rms_norm = adapt_rms_norm(partial(nnx_norm, "RMSNorm"), "epsilon")

peer = partial(make_peer, "Flax ", __name__, "jax", ("flax", "jax"))
PEERS = (
    peer("linen.dot_product_attention", "linen_attention", "attention", documented=BROADCAST),
    peer("nnx.dot_product_attention, weights sown", "nnx_attention", "attention", documented=BROADCAST),
    peer("linen.MultiHeadDotProductAttention", "linen_heads", "multi_head_attention", fitted=resize_case),
    peer("linen.LayerNorm", "linen_layer_norm_fast", "layer_norm"),
    peer("linen.LayerNorm, use_fast_variance=False", "linen_layer_norm_slow", "layer_norm"),
    peer("linen.RMSNorm", "linen_rms_norm", "rms_norm"),
    peer("nnx.LayerNorm", "nnx_layer_norm", "layer_norm"),
    peer("nnx.RMSNorm", "nnx_rms_norm", "rms_norm"),
)
