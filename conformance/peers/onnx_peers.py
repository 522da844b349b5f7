"""ONNX's operators Attention, LayerNormalization and RMSNormalization, and com.microsoft's MultiHeadAttention."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import Options, adapt_attention, adapt_layer_norm, adapt_rms_norm
from conformance.peers.onnx_nodes import CONTRIBUTED, run
from conformance.peers.peer import BROADCAST, FLOAT_MASK, Peer, causal_flag, is_aligned, no_mask, takes_masks, top_left
from specification import KeyLengths, KeyPadding, SlidingWindow

if TYPE_CHECKING:
    from specification.masks import Mask

DTYPES = {"runtime": ("float32", "float16", "float64"), "reference": ("float32", "bfloat16", "float16", "float64")}
DESCRIBED = {"structured", "scale", "softcap", "cross", "gqa", "value_width"}
LACKS = ("no-empty", "no-gradients")
NUMBERS: Options = {"scale": "scale", "softcap": "softcap"}
INPUTS = ("attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
"""Of Attention, after query, key and value; what else is given is an attribute."""


def attend(runner: str, opset: int, query: np.ndarray, key: np.ndarray, value: np.ndarray, **given: Any) -> Any:
    inputs = {"Q": query, "K": key, "V": value} | {name: given.pop(name, None) for name in INPUTS}
    return run(runner, "Attention", opset, inputs, **given)


def read_flag(mask: Mask | None) -> dict[str, Any]:
    return {"is_causal": int(causal_flag(mask, "is_causal")) or None}


def read_lengths(mask: Mask | None) -> dict[str, Any]:
    counts = mask.lengths.astype(np.int64) if isinstance(mask, KeyLengths) else no_mask(mask, "nonpad_kv_seqlen")
    return {"nonpad_kv_seqlen": counts}


def read_window(mask: Mask | None) -> dict[str, Any]:
    sides = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else (no_mask(mask, "windows"), None)
    left, right = (None if side is None else int(side) for side in sides)
    return {"left_window_size": left, "right_window_size": right}


def attend_by(
    runner: str,
    options: Options,
    supports: Collection[str] = LACKS,
    opset: int = 23,
    **declared: Any,
) -> Callable[..., Any]:
    call = partial(attend, runner, opset)
    return adapt_attention(call, options | NUMBERS, supports, dtypes=DTYPES[runner], **declared)


@declare(
    {"structured", "padding", "causal", "bias", "scale", "cross", "value_width"},
    layout="BTHD",
    dtypes=("float32", "float16"),
    conventions={"causal": "top_left"},
)
def contrib_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: Mask | np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
) -> Any:
    """com.microsoft's MultiHeadAttention with `key_padding_mask`, `unidirectional` and `attention_bias`."""
    heads, K = query.shape[2], key.shape[1]
    inputs: dict[str, Any] = {n: a.reshape(*a.shape[:2], -1) for n, a in zip("QKV", (query, key, value), strict=True)}
    padding = mask.keep if isinstance(mask, KeyPadding) else None
    padding = padding.astype(np.int32) if padding is not None and padding.dtype == bool else padding
    flag = int(causal_flag(mask, "unidirectional")) if padding is None else 0
    bias = bias[None, None] if bias is not None and bias.ndim == 2 else bias
    inputs |= {"bias": None, "key_padding_mask": padding, "attention_bias": bias}
    given = {"num_heads": heads, "unidirectional": flag or None, "scale": scale}
    output = run("runtime", "MultiHeadAttention", 17, inputs, CONTRIBUTED, **given)
    return output.reshape(*output.shape[:2], heads, -1) if K else output


def normalize(runner: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, **eps: Any) -> Any:
    return run(runner, "LayerNormalization", 17, {"X": x, "Scale": weight, "B": bias}, axis=-weight.ndim, **eps)


def normalize_by_root(runner: str, x: np.ndarray, weight: np.ndarray, bias: None, **eps: Any) -> Any:
    return run(runner, "RMSNormalization", 23, {"X": x, "scale": weight}, axis=-weight.ndim, **eps)


runtime_mask, reference_mask = (attend_by(runner, {"mask": "attn_mask"}) for runner in DTYPES)
runtime_bias, reference_bias = (attend_by(runner, {"bias": "attn_mask"}) for runner in DTYPES)
runtime_causal, reference_causal = (
    attend_by(runner, {"mask": read_flag}, {*DESCRIBED, "causal"}, conventions={"causal": "top_left"})
    for runner in DTYPES
)
runtime_lengths, reference_lengths = (
    attend_by(runner, {"mask": read_lengths}, {*DESCRIBED, "lengths"}, 24) for runner in DTYPES
)
reference_window = attend_by("reference", {"mask": read_window}, {*DESCRIBED, "window"}, 25)
runtime_layer_norm, reference_layer_norm = (
    adapt_layer_norm(partial(normalize, runner), "epsilon", "no-gradients", dtypes=dtypes)
    for runner, dtypes in DTYPES.items()
)
runtime_rms_norm, reference_rms_norm = (
    adapt_rms_norm(partial(normalize_by_root, runner), "epsilon", "no-gradients", dtypes=dtypes)
    for runner, dtypes in DTYPES.items()
)


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
