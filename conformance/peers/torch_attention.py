"""`torch.nn.functional.scaled_dot_product_attention`, by kernel and by the parameter that holds the mask.

Left to itself on a CPU, it takes the flash kernel where query, key and value have one width and the mask needs no
gradient, and the math kernel elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from conformance.cases.declaration import declare
from conformance.peers.peer import BROADCAST, FLOAT_MASK, Peer, causal_flag, top_left

LOCK = threading.Lock()
INSIDE: dict[object, str] = {}
"""The kernel of each call that is being made."""
SWITCHED = contextlib.ExitStack()


@contextlib.contextmanager
def restrict_kernel(kernel: str) -> Iterator[None]:
    """Allow no other kernel until the last call has ended; RuntimeError while a call with another one runs.

    `sdpa_kernel` has the switches of the whole process. If each of several threads set them, a call could find all of
    them off, and they could stay as one thread had set them.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    call = object()
    try:
        with LOCK:
            if other := {*INSIDE.values()} - {kernel}:
                raise RuntimeError(f"{kernel} is asked for while calls with {', '.join(other)} run")
            if not INSIDE:
                SWITCHED.enter_context(sdpa_kernel(getattr(SDPBackend, kernel)))
            INSIDE[call] = kernel
        yield
    finally:
        with LOCK:
            INSIDE.pop(call, None)
            if not INSIDE:
                SWITCHED.close()


def attend(kernel: str, query: Any, key: Any, value: Any, **keywords: Any) -> Any:
    """The function itself, with `kernel` the only one allowed."""
    import torch

    keywords["enable_gqa"] = query.shape[1] != key.shape[1]
    with restrict_kernel(kernel):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **keywords)


def make_masked_attention(kernel: str, *lacks: str) -> Callable[..., Any]:
    @declare(lacking(lacks))
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `attn_mask` boolean: True may attend."""
        return attend(kernel, query, key, value, attn_mask=mask, scale=scale)

    return attention


def make_biased_attention(kernel: str, *lacks: str) -> Callable[..., Any]:
    @declare(lacking(lacks))
    def attention(query: Any, key: Any, value: Any, *, bias: Any = None, scale: float | None = None) -> Any:
        """With `attn_mask` of numbers, which are added to the scores."""
        return attend(kernel, query, key, value, attn_mask=bias, scale=scale)

    return attention


def causal(kernel: str, *lacks: str) -> Callable[..., Any]:
    features = {"structured", "causal", "scale", "cross", "gqa", "value_width", "empty", "gradients"}

    @declare(features - set(lacks), conventions={"causal": "top_left"})
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `is_causal`."""
        return attend(kernel, query, key, value, is_causal=causal_flag(mask, "is_causal"), scale=scale)

    return attention


def lacking(features: tuple[str, ...]) -> list[str] | None:
    return [f"no-{feature}" for feature in features] or None


math_mask, math_bias, math_causal = make_masked_attention("MATH"), make_biased_attention("MATH"), causal("MATH")
flash_mask = make_masked_attention("FLASH_ATTENTION", "value_width")
flash_bias = make_biased_attention("FLASH_ATTENTION", "value_width", "gradients")
flash_causal = causal("FLASH_ATTENTION", "value_width")
efficient_mask, efficient_causal = (
    make_masked_attention("EFFICIENT_ATTENTION", "gqa"),
    causal("EFFICIENT_ATTENTION", "gqa"),
)
cudnn_mask, cudnn_causal = make_masked_attention("CUDNN_ATTENTION"), causal("CUDNN_ATTENTION")
flash_cuda_causal = causal("FLASH_ATTENTION", "value_width")

HALF: dict[str, Any] = {"dtypes": ("bfloat16", "float16"), "width_multiple": 8}
NO_DOUBLE: dict[str, Any] = {"dtypes": ("float32", "bfloat16", "float16"), "width_multiple": 8}
PATHS = {"mask": "attn_mask of booleans", "bias": "attn_mask of numbers", "causal": "is_causal"}


def peer(kernel: str, subject: str, path: str, **fields: Any) -> Peer:
    name = f"torch SDPA, {kernel}, {PATHS[path]}"
    fields |= {"takes": top_left} if path == "causal" else {"documented": (*FLOAT_MASK, *BROADCAST)}
    return Peer(name, f"{__name__}:{subject}", "attention", "torch", ("torch",), **fields)


PEERS = (
    *(peer("math", f"math_{path}", path) for path in PATHS),
    *(peer("flash (CPU)", f"flash_{path}", path) for path in PATHS),
    peer("flash (CUDA)", "flash_cuda_causal", "causal", device="cuda", given=HALF),
    peer("efficient (CUDA)", "efficient_mask", "mask", device="cuda", given=NO_DOUBLE),
    peer("efficient (CUDA)", "efficient_causal", "causal", device="cuda", given=NO_DOUBLE),
    peer("cuDNN (CUDA)", "cudnn_mask", "mask", device="cuda", given=HALF),
    peer("cuDNN (CUDA)", "cudnn_causal", "causal", device="cuda", given=HALF),
)
