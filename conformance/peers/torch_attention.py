"""`torch.nn.functional.scaled_dot_product_attention`, by kernel and by the parameter that holds the mask.

Left to itself on a CPU, it takes the flash kernel where query, key and value have one width and the mask needs no
gradient, and the math kernel elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.peers.adapters import Options, adapt_attention, read_causal
from conformance.peers.peer import BROADCAST, FLOAT_MASK, Peer, top_left

if TYPE_CHECKING:
    import torch

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


def attend(kernel: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **keywords: Any) -> Any:
    """The function itself, with `kernel` the only one allowed."""
    import torch

    keywords["enable_gqa"] = query.shape[1] != key.shape[1]
    with restrict_kernel(kernel):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **keywords)


MASK: Options = {"mask": "attn_mask", "scale": "scale"}
"""Booleans: True may attend."""
BIAS: Options = {"bias": "attn_mask", "scale": "scale"}
"""Numbers, which are added to the scores."""
CAUSAL: Options = {"mask": read_causal("is_causal"), "scale": "scale"}
CAUSAL_FEATURES = {"structured", "causal", "scale", "cross", "gqa", "value_width", "empty", "gradients"}


def adapt_masked(kernel: str, *lacks: str, options: Options = MASK) -> Callable[..., Any]:
    return adapt_attention(partial(attend, kernel), options, [f"no-{feature}" for feature in lacks])


def adapt_causal(kernel: str, *lacks: str) -> Callable[..., Any]:
    features = CAUSAL_FEATURES - {*lacks}
    return adapt_attention(partial(attend, kernel), CAUSAL, features, conventions={"causal": "top_left"})


math_mask, math_bias, math_causal = adapt_masked("MATH"), adapt_masked("MATH", options=BIAS), adapt_causal("MATH")
flash_mask = adapt_masked("FLASH_ATTENTION", "value_width")
flash_bias = adapt_masked("FLASH_ATTENTION", "value_width", "gradients", options=BIAS)
flash_causal = flash_cuda_causal = adapt_causal("FLASH_ATTENTION", "value_width")
efficient_mask, efficient_causal = (
    adapt_masked("EFFICIENT_ATTENTION", "gqa"),
    adapt_causal("EFFICIENT_ATTENTION", "gqa"),
)
cudnn_mask, cudnn_causal = adapt_masked("CUDNN_ATTENTION"), adapt_causal("CUDNN_ATTENTION")

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
