"""ONNX's operators Attention, LayerNormalization and RMSNormalization, and com.microsoft's MultiHeadAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.onnx_nodes import CONTRIBUTED, run
from conformance.peers.peer import BROADCAST, FLOAT_MASK, Peer, causal_flag, is_aligned, no_mask, takes_masks, top_left
from specification import KeyLengths, KeyPadding, SlidingWindow

DTYPES = {"runtime": ("float32", "float16", "float64"), "reference": ("float32", "bfloat16", "float16", "float64")}
DESCRIBED = {"structured", "scale", "softcap", "cross", "gqa", "value_width"}


def attend(runner: str, opset: int, query: Any, key: Any, value: Any, extra: dict[str, Any], **attributes: Any) -> Any:
    return run(runner, "Attention", opset, {"Q": query, "K": key, "V": value} | extra, **attributes)


def make_masked_attention(runner: str) -> Callable[..., Any]:
    @declare(["no-empty", "no-gradients"], dtypes=DTYPES[runner])
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None
    ) -> Any:
        """With `attn_mask` boolean."""
        return attend(runner, 23, query, key, value, {"attn_mask": mask}, scale=scale, softcap=softcap)

    return attention


def make_biased_attention(runner: str) -> Callable[..., Any]:
    @declare(["no-empty", "no-gradients"], dtypes=DTYPES[runner])
    def attention(
        query: Any, key: Any, value: Any, *, bias: Any = None, scale: float | None = None, softcap: float | None = None
    ) -> Any:
        """With `attn_mask` of numbers."""
        return attend(runner, 23, query, key, value, {"attn_mask": bias}, scale=scale, softcap=softcap)

    return attention


def causal(runner: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "causal"}, dtypes=DTYPES[runner], conventions={"causal": "top_left"})
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None
    ) -> Any:
        """With `is_causal`."""
        flag = int(causal_flag(mask, "is_causal")) or None
        return attend(runner, 23, query, key, value, {}, is_causal=flag, scale=scale, softcap=softcap)

    return attention


def lengths(runner: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "lengths"}, dtypes=DTYPES[runner])
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None
    ) -> Any:
        """With `nonpad_kv_seqlen`."""
        counts = mask.lengths.astype(np.int64) if isinstance(mask, KeyLengths) else no_mask(mask, "nonpad_kv_seqlen")
        extra = {"attn_mask": None, "past_key": None, "past_value": None, "nonpad_kv_seqlen": counts}
        return attend(runner, 24, query, key, value, extra, scale=scale, softcap=softcap)

    return attention


def window(runner: str) -> Callable[..., Any]:
    @declare({*DESCRIBED, "window"}, dtypes=DTYPES[runner])
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None
    ) -> Any:
        """With `left_window_size` and `right_window_size`."""
        sides = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else (no_mask(mask, "windows"), None)
        left, right = (None if side is None else int(side) for side in sides)
        sizes = {"left_window_size": left, "right_window_size": right}
        return attend(runner, 25, query, key, value, {}, scale=scale, softcap=softcap, **sizes)

    return attention


@declare(
    {"structured", "padding", "causal", "bias", "scale", "cross", "value_width"},
    layout="BTHD",
    dtypes=("float32", "float16"),
    conventions={"causal": "top_left"},
)
def contrib_attention(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None
) -> Any:
    """com.microsoft's MultiHeadAttention with `key_padding_mask`, `unidirectional` and `attention_bias`."""
    heads, K = query.shape[2], key.shape[1]
    inputs = {name: array.reshape(*array.shape[:2], -1) for name, array in zip("QKV", (query, key, value), strict=True)}
    padding = mask.keep if isinstance(mask, KeyPadding) else None
    padding = padding.astype(np.int32) if padding is not None and padding.dtype == bool else padding
    flag = int(causal_flag(mask, "unidirectional")) if padding is None else 0
    bias = bias[None, None] if bias is not None and bias.ndim == 2 else bias
    inputs |= {"bias": None, "key_padding_mask": padding, "attention_bias": bias}
    given = {"num_heads": heads, "unidirectional": flag or None, "scale": scale}
    output = run("runtime", "MultiHeadAttention", 17, inputs, CONTRIBUTED, **given)
    return output.reshape(*output.shape[:2], heads, -1) if K else output


def layer_norm_by(runner: str) -> Callable[..., Any]:
    @declare(["no-gradients"], dtypes=DTYPES[runner])
    def layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
        """LayerNormalization."""
        inputs = {"X": x, "Scale": weight, "B": bias}
        return run(runner, "LayerNormalization", 17, inputs, axis=-weight.ndim, epsilon=eps)

    return layer_norm


def rms_norm_by(runner: str) -> Callable[..., Any]:
    @declare(["no-gradients"], dtypes=DTYPES[runner])
    def rms_norm(x: Any, weight: Any, *, eps: float | None = None) -> Any:
        """RMSNormalization."""
        return run(runner, "RMSNormalization", 23, {"X": x, "scale": weight}, axis=-weight.ndim, epsilon=eps)

    return rms_norm


runtime_mask, reference_mask = make_masked_attention("runtime"), make_masked_attention("reference")
runtime_bias, reference_bias = make_biased_attention("runtime"), make_biased_attention("reference")
runtime_causal, reference_causal = causal("runtime"), causal("reference")
runtime_lengths, reference_lengths = lengths("runtime"), lengths("reference")
reference_window = window("reference")
runtime_layer_norm, reference_layer_norm = layer_norm_by("runtime"), layer_norm_by("reference")
runtime_rms_norm, reference_rms_norm = rms_norm_by("runtime"), rms_norm_by("reference")


def exact(case: Case) -> bool:
    """Attributes are float32: a number that is not cannot be given in a float64 call. Inputs share one dtype."""
    defaults = {"eps": 1e-5} if "x" in case.inputs else {}
    numbers = [(defaults | case.options).get(name) for name in ("scale", "softcap", "eps")]
    exact = case.dtype != "float64" or all(n is None or float(np.float32(n)) == n for n in numbers)
    return exact and all(str(array.dtype) == case.dtype for array in case.inputs.values())


def plain_window(case: Case) -> bool:
    mask = case.options.get("mask")
    return mask is None or (isinstance(mask, SlidingWindow) and is_aligned(mask))


def has_padding_or_causal(case: Case) -> bool:
    """`unidirectional` is for tokens that attend to themselves: as many queries as keys."""
    mask, inputs = case.options.get("mask"), case.inputs
    alike = mask is None or inputs["query"].shape == inputs["key"].shape
    return exact(case) and (isinstance(mask, KeyPadding) or (alike and top_left(case)))


PATHS: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "mask": ("Attention-23, attn_mask of booleans", exact),
    "bias": ("Attention-23, attn_mask of numbers", exact),
    "causal": ("Attention-23, is_causal", lambda case: exact(case) and top_left(case)),
    "lengths": ("Attention-24, nonpad_kv_seqlen", lambda case: exact(case) and takes_masks(KeyLengths)(case)),
    "window": ("Attention-25, window sizes", lambda case: exact(case) and plain_window(case)),
}
PRODUCTS = {"runtime": ("ONNX Runtime", ("onnxruntime", "onnx")), "reference": ("ONNX reference", ("onnx",))}


def peer(runner: str, subject: str, title: str, operation: str, takes: Callable[[Case], bool], **fields: Any) -> Peer:
    product, packages = PRODUCTS[runner]
    found = f"{__name__}:{subject}"
    isolated = runner == "runtime"
    return Peer(f"{product}, {title}", found, operation, "numpy", packages, takes=takes, isolated=isolated, **fields)


def peers(runner: str) -> list[Peer]:
    found = []
    for path, (title, takes) in PATHS.items():
        if (runner, path) == ("runtime", "window"):  # version 1.31 does not know the attributes
            continue
        documented = (
            "softcap 0",
            *((*FLOAT_MASK, *BROADCAST, "a mask of 0 and 1") if path in ("mask", "bias") else ()),
        )
        found.append(peer(runner, f"{runner}_{path}", title, "attention", takes, documented=documented))
    for operation, title in (("layer_norm", "LayerNormalization-17"), ("rms_norm", "RMSNormalization-23")):
        found.append(peer(runner, f"{runner}_{operation}", title, operation, exact))
    return found


PEERS = (
    *peers("runtime"),
    peer("runtime", "contrib_attention", "com.microsoft MultiHeadAttention", "attention", has_padding_or_causal),
    *peers("reference"),
)
