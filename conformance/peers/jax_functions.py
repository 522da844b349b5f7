"""`jax.nn.dot_product_attention`, by the parameter that holds the mask, and layer norm by `jax.nn.standardize`.

Beside them stands attention as many write it, of which `jax.jit` makes one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import Options, adapt_attention, adapt_layer_norm, make_peer, read_causal
from conformance.peers.peer import BROADCAST, is_aligned, no_mask, takes_masks, top_left
from specification import KeyLengths, SlidingWindow

if TYPE_CHECKING:
    import jax

    from specification.masks import Mask

DESCRIBED = {"structured", "scale", "cross", "gqa", "gradients"}
LACKS = ("no-value_width", "no-empty")
MASK: Options = {name: name for name in ("mask", "bias", "scale")}
CAUSAL: Options = {"mask": read_causal("is_causal"), "scale": "scale"}


def read_lengths(mask: Mask | None) -> dict[str, Any]:
    counts = mask.lengths.astype("int32") if isinstance(mask, KeyLengths) else no_mask(mask, "sequence lengths")
    return {"key_value_seq_lengths": counts}


def read_window(mask: Mask | None) -> dict[str, Any]:
    size = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else no_mask(mask, "local_window_size")
    return {"local_window_size": size}


def attend(implementation: Any, query: jax.Array, key: jax.Array, value: jax.Array, **keywords: Any) -> Any:
    import jax

    return jax.nn.dot_product_attention(query, key, value, implementation=implementation, **keywords)


def attend_by(implementation: str, options: Options, supports: Collection[str], **declared: Any) -> Callable[..., Any]:
    return adapt_attention(partial(attend, implementation), options, supports, layout="BTHD", **declared)


xla_mask, cudnn_mask = (attend_by(name, MASK, LACKS) for name in ("xla", "cudnn"))
xla_causal, cudnn_causal = (
    attend_by(name, CAUSAL, {*DESCRIBED, "causal"}, conventions={"causal": "top_left"}) for name in ("xla", "cudnn")
)
xla_lengths = attend_by("xla", {"mask": read_lengths, "scale": "scale"}, {*DESCRIBED, "lengths"})
xla_window = attend_by("xla", {"mask": read_window, "scale": "scale"}, {*DESCRIBED, "window"})


def plain_window(case: Case) -> bool:
    """Calls without a mask, or with a window that has both sides and starts at the first key."""
    mask = case.options.get("mask")
    if not isinstance(mask, SlidingWindow):
        return mask is None
    return isinstance(mask.left, int) and isinstance(mask.right, int) and is_aligned(mask)


@functools.cache
def compiled_einsum() -> Callable[..., Any]:
    import jax

    @jax.jit
    def attention(query: jax.Array, key: jax.Array, value: jax.Array, scale: float) -> Any:
        key, value = (jax.numpy.repeat(a, query.shape[1] // a.shape[1], 1) for a in (key, value))
        weights = jax.nn.softmax(jax.numpy.einsum("bhqd,bhkd->bhqk", query, key) * scale, -1)
        return jax.numpy.einsum("bhqk,bhkv->bhqv", weights, value)

    return attention


@declare({"scale", "cross", "gqa", "value_width", "gradients"})
def einsum(query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float | None = None) -> Any:
    """Key heads repeated, then einsum, softmax, einsum: compiled as a whole, and differentiated from outside."""
    return compiled_einsum()(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)


def standardize(algorithm: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, **eps: float) -> Any:
    """`jax.nn.standardize`, times weight, plus bias."""
    import jax

    normalize: Any = jax.nn.standardize
    scaled = normalize(x, axis=tuple(range(-weight.ndim, 0)), algorithm=algorithm, **eps) * weight
    return scaled if bias is None else scaled + bias


standardize_fast, standardize_stable = (
    adapt_layer_norm(partial(standardize, algorithm), "epsilon") for algorithm in ("fast", "stable")
)

WIDE = {"dtypes": ("float32", "float64")}
"""Multiplying what `standardize` returned is the adapter's doing, and in 16 bits it would round once more; nor is it
`standardize` that is given a weight of another dtype. The einsums of 16 bits round their scores too."""
HALF = {"dtypes": ("bfloat16", "float16"), "width_multiple": 8}


peer = partial(make_peer, "jax.", __name__, "jax", ("jax",))
FUNCTION = "nn.dot_product_attention"
CAUSAL_PATH: dict[str, Any] = {"operation": "attention", "takes": top_left}
CUDNN: dict[str, Any] = {"device": "cuda", "given": HALF}
NORM: dict[str, Any] = {"operation": "layer_norm", "given": WIDE, "documented": ("mixed dtypes",)}
PEERS = (
    peer(f"{FUNCTION}, xla, mask and bias", "xla_mask", "attention", documented=BROADCAST),
    peer(f"{FUNCTION}, xla, is_causal", "xla_causal", **CAUSAL_PATH),
    peer(f"{FUNCTION}, xla, key_value_seq_lengths", "xla_lengths", "attention", takes=takes_masks(KeyLengths)),
    peer(f"{FUNCTION}, xla, local_window_size", "xla_window", "attention", takes=plain_window),
    peer(f"{FUNCTION}, cudnn, mask and bias", "cudnn_mask", "attention", documented=BROADCAST, **CUDNN),
    peer(f"{FUNCTION}, cudnn, is_causal", "cudnn_causal", **CAUSAL_PATH, **CUDNN),
    peer("numpy.einsum, repeated key heads, under jax.jit", "einsum", "attention", given=WIDE, shrinking=120.0),
    peer("nn.standardize, fast", "standardize_fast", **NORM),
    peer("nn.standardize, stable", "standardize_stable", **NORM),
)
