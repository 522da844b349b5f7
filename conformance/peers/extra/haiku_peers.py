"""Haiku: multi-head attention and norms. A module is a function of its parameters by `hk.transform`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import adapt_layer_norm, adapt_rms_norm, make_peer
from conformance.peers.heads import join_heads, one_mask_for_all_heads, resize_case

if TYPE_CHECKING:
    import jax

    from specification.parameters import MultiHeadAttention


def apply_module(make: Callable[[Any], Any], named: dict[str, Any], *arguments: Any) -> Any:
    """What a module that `make` makes of the library gives for the arguments, with parameters by name."""
    import haiku

    transformed = haiku.without_apply_rng(haiku.transform(lambda *given: make(haiku)(*given)))
    return transformed.apply(named, *arguments)


@declare(["no-gqa", "no-empty"])
def heads(
    parameters: MultiHeadAttention, query: jax.Array, key: jax.Array, value: jax.Array, *, num_heads: int,
    mask: jax.Array | None = None,
) -> Any:  # fmt: skip
    """`MultiHeadAttention`, which has biases on all projections or on none."""
    import jax

    parts = [*(join_heads(part, jax.numpy.concatenate) for part in parameters[:3]), parameters.output]
    paths = [f"multi_head_attention/{name}" for name in ("query", "key", "value", "linear")]
    named = {
        path: {"w": weight} | ({} if bias is None else {"b": bias})
        for path, (weight, bias) in zip(paths, parts, strict=True)
    }
    options = {"key_size": parts[0].weight.shape[1] // num_heads, "value_size": parts[2].weight.shape[1] // num_heads}
    options |= {"model_size": parts[3].weight.shape[1], "with_bias": parts[3].bias is not None}

    def make(haiku: Any) -> Any:
        return haiku.MultiHeadAttention(num_heads, w_init=jax.numpy.zeros, **options)

    rows = mask[None, None] if mask is not None and mask.ndim == 2 else mask
    return apply_module(make, named, query, key, value, rows)


def normalize(fast: bool, x: jax.Array, weight: jax.Array, bias: jax.Array | None, **eps: float) -> Any:
    def make(haiku: Any) -> Any:
        return haiku.LayerNorm(-1, True, bias is not None, use_fast_variance=fast, param_axis=-1, **eps)

    return apply_module(make, {"layer_norm": {"scale": weight} | ({} if bias is None else {"offset": bias})}, x)


def normalize_by_root(x: jax.Array, weight: jax.Array, bias: None, **eps: float) -> Any:
    return apply_module(lambda haiku: haiku.RMSNorm(-1, **eps), {"rms_norm": {"scale": weight}}, x)


layer_norm, layer_norm_fast = (
    adapt_layer_norm(partial(normalize, fast), "eps", "no-axes", "no-wide_weights") for fast in (False, True)
)
rms_norm = adapt_rms_norm(normalize_by_root, "eps", "no-axes", "no-wide_weights")

peer = partial(make_peer, "Haiku ", __name__, "jax", ("haiku", "jax"))
PEERS = (
    peer("MultiHeadAttention", "heads", "multi_head_attention", fitted=resize_case, takes=one_mask_for_all_heads),
    peer("LayerNorm", "layer_norm", "layer_norm"),
    peer("LayerNorm, use_fast_variance", "layer_norm_fast", "layer_norm"),
    peer("RMSNorm", "rms_norm", "rms_norm"),
)
