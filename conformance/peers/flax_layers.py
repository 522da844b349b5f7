"""Flax: dot-product attention, multi-head attention and norms of `flax.linen` and of `flax.nnx`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from conformance.cases.declaration import declare
from conformance.peers.heads import join_heads, resize_case
from conformance.peers.peer import BROADCAST, Peer

HEADS_LACK = ("no-gqa", "no-value_width", "no-empty")


@declare(["no-gqa"], layout="BTHD")
def linen_attention(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """`flax.linen.dot_product_attention`."""
    from flax import linen

    return linen.dot_product_attention(query, key, value, bias=bias, mask=mask)


@declare(["no-empty"], layout="BTHD")
def nnx_attention(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """`flax.nnx.dot_product_attention` with a module to store the weights in; without, it calls `jax.nn`'s."""
    from flax import nnx

    return nnx.dot_product_attention(query, key, value, bias=bias, mask=mask, module=nnx.Module())


def split_parameters(parameters: Any, heads: int) -> dict[str, dict[str, Any]]:
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
def linen_heads(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, mask: Any = None) -> Any:
    """`flax.linen.MultiHeadDotProductAttention`."""
    from flax import linen

    weight, bias = parameters.output
    module = linen.MultiHeadDotProductAttention(
        num_heads, qkv_features=weight.shape[0], out_features=weight.shape[1], use_bias=bias is not None
    )
    named = {"params": split_parameters(parameters, num_heads)}
    return module.apply(named, query, key, value, mask=mask, deterministic=True)


def linen_layer_norm(fast: bool) -> Callable[..., Any]:
    def layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
        """`flax.linen.LayerNorm`, with the dtype of x for its result."""
        from flax import linen

        axes = tuple(range(-weight.ndim, 0))
        given: dict[str, Any] = {} if eps is None else {"epsilon": eps}
        module = linen.LayerNorm(
            dtype=x.dtype,
            use_bias=bias is not None,
            reduction_axes=axes,
            feature_axes=axes,
            use_fast_variance=fast,
            **given,
        )
        return module.apply({"params": {"scale": weight} | ({} if bias is None else {"bias": bias})}, x)

    return layer_norm


linen_layer_norm_fast, linen_layer_norm_slow = linen_layer_norm(True), linen_layer_norm(False)


def linen_rms_norm(x: Any, weight: Any, *, eps: float | None = None) -> Any:
    """`flax.linen.RMSNorm`, with the dtype of x for its result."""
    from flax import linen

    axes = tuple(range(-weight.ndim, 0))
    given: dict[str, Any] = {} if eps is None else {"epsilon": eps}
    module = linen.RMSNorm(dtype=x.dtype, reduction_axes=axes, feature_axes=axes, **given)
    return module.apply({"params": {"scale": weight}}, x)


@functools.cache
def nnx_norm(kind: str, size: int, axes: tuple[int, ...], dtype: str, biased: bool, eps: float | None) -> Any:
    from flax import nnx

    given: dict[str, Any] = {} if eps is None else {"epsilon": eps}
    given |= {"use_bias": biased} if kind == "LayerNorm" else {}
    made = getattr(nnx, kind)(size, reduction_axes=axes, feature_axes=axes, dtype=dtype, rngs=nnx.Rngs(0), **given)
    return nnx.split(made)[0]


def nnx_layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
    """`flax.nnx.LayerNorm`, with the dtype of x for its result."""
    return nnx_call("LayerNorm", x, weight, bias, eps)


def nnx_rms_norm(x: Any, weight: Any, *, eps: float | None = None) -> Any:
    """`flax.nnx.RMSNorm`, with the dtype of x for its result."""
    return nnx_call("RMSNorm", x, weight, None, eps)


def nnx_call(kind: str, x: Any, weight: Any, bias: Any, eps: float | None) -> Any:
    from flax import nnx

    axes = tuple(range(-weight.ndim, 0))
    graph = nnx_norm(kind, weight.size, axes, str(x.dtype), bias is not None, eps)
    parameters = {"scale": nnx.Param(weight)} | ({} if bias is None else {"bias": nnx.Param(bias)})
    return nnx.merge(graph, nnx.State(parameters))(x)


def peer(name: str, subject: str, operation: str, **fields: Any) -> Peer:
    return Peer(f"Flax {name}", f"{__name__}:{subject}", operation, "jax", ("flax", "jax"), **fields)


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
