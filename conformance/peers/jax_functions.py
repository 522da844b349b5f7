"""`jax.nn.dot_product_attention`, by the parameter that holds the mask, and layer norm by `jax.nn.standardize`.

Beside them stands attention as many write it, of which `jax.jit` makes one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.peer import BROADCAST, Peer, causal_flag, is_aligned, no_mask, takes_masks, top_left
from specification import KeyLengths, SlidingWindow

DESCRIBED = {"structured", "scale", "cross", "gqa", "gradients"}


def attend(implementation: Any, query: Any, key: Any, value: Any, **keywords: Any) -> Any:
    import jax

    return jax.nn.dot_product_attention(query, key, value, implementation=implementation, **keywords)


def make_masked_attention(implementation: str) -> Callable[..., Any]:
    @declare(["no-value_width", "no-empty"], layout="BTHD")
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None
    ) -> Any:
        """With `mask` and `bias`."""
        return attend(implementation, query, key, value, mask=mask, bias=bias, scale=scale)

    return attention


def causal(implementation: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "causal"}, layout="BTHD", conventions={"causal": "top_left"})
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `is_causal`."""
        return attend(implementation, query, key, value, is_causal=causal_flag(mask, "is_causal"), scale=scale)

    return attention


def lengths(implementation: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "lengths"}, layout="BTHD")
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `key_value_seq_lengths`."""
        counts = mask.lengths.astype("int32") if isinstance(mask, KeyLengths) else no_mask(mask, "sequence lengths")
        return attend(implementation, query, key, value, key_value_seq_lengths=counts, scale=scale)

    return attention


def window(implementation: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "window"}, layout="BTHD")
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `local_window_size`."""
        size = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else no_mask(mask, "local_window_size")
        return attend(implementation, query, key, value, local_window_size=size, scale=scale)

    return attention


def plain_window(case: Case) -> bool:
    """Calls without a mask, or with a window that has both sides and starts at the first key."""
    mask = case.options.get("mask")
    if not isinstance(mask, SlidingWindow):
        return mask is None
    return isinstance(mask.left, int) and isinstance(mask.right, int) and is_aligned(mask)


xla_mask, xla_causal, xla_lengths, xla_window = (
    make_masked_attention("xla"),
    causal("xla"),
    lengths("xla"),
    window("xla"),
)
cudnn_mask, cudnn_causal = make_masked_attention("cudnn"), causal("cudnn")


@functools.cache
def compiled_einsum() -> Callable[..., Any]:
    import jax

    @jax.jit
    def attention(query: Any, key: Any, value: Any, scale: float) -> Any:
        key, value = (jax.numpy.repeat(a, query.shape[1] // a.shape[1], 1) for a in (key, value))
        weights = jax.nn.softmax(jax.numpy.einsum("bhqd,bhkd->bhqk", query, key) * scale, -1)
        return jax.numpy.einsum("bhqk,bhkv->bhqv", weights, value)

    return attention


@declare({"scale", "cross", "gqa", "value_width", "gradients"})
def einsum(query: Any, key: Any, value: Any, *, scale: float | None = None) -> Any:
    """Key heads repeated, then einsum, softmax, einsum: compiled as a whole, and differentiated from outside."""
    return compiled_einsum()(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)


def make_layer_norm(algorithm: str) -> Callable[..., Any]:
    def layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
        """`jax.nn.standardize`, times weight, plus bias."""
        import jax

        axes, given = tuple(range(-weight.ndim, 0)), {} if eps is None else {"epsilon": eps}
        standardize: Any = jax.nn.standardize
        scaled = standardize(x, axis=axes, algorithm=algorithm, **given) * weight
        return scaled if bias is None else scaled + bias

    return layer_norm


standardize_fast, standardize_stable = make_layer_norm("fast"), make_layer_norm("stable")

WIDE = {"dtypes": ("float32", "float64")}
"""Multiplying what `standardize` returned is the adapter's doing, and in 16 bits it would round once more; nor is it
`standardize` that is given a weight of another dtype. The einsums of 16 bits round their scores too."""
HALF = {"dtypes": ("bfloat16", "float16"), "width_multiple": 8}


def peer(implementation: str, subject: str, path: str, **fields: Any) -> Peer:
    name = f"jax.nn.dot_product_attention, {implementation}, {path}"
    return Peer(name, f"{__name__}:{subject}", "attention", "jax", ("jax",), **fields)


def norm(algorithm: str) -> Peer:
    name, subject = f"jax.nn.standardize, {algorithm}", f"{__name__}:standardize_{algorithm}"
    return Peer(name, subject, "layer_norm", "jax", ("jax",), given=WIDE, documented=("mixed dtypes",))


PEERS = (
    peer("xla", "xla_mask", "mask and bias", documented=BROADCAST),
    peer("xla", "xla_causal", "is_causal", takes=top_left),
    peer("xla", "xla_lengths", "key_value_seq_lengths", takes=takes_masks(KeyLengths)),
    peer("xla", "xla_window", "local_window_size", takes=plain_window),
    peer("cudnn", "cudnn_mask", "mask and bias", device="cuda", given=HALF, documented=BROADCAST),
    peer("cudnn", "cudnn_causal", "is_causal", takes=top_left, device="cuda", given=HALF),
    Peer(
        "jax.numpy.einsum, repeated key heads, under jax.jit",
        f"{__name__}:einsum",
        "attention",
        "jax",
        ("jax",),
        given=WIDE,
        shrinking=120.0,
    ),
    norm("fast"),
    norm("stable"),
)
