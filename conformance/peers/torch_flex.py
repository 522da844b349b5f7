"""`flex_attention` of torch: a mask becomes a `mask_mod` that looks it up, a bias or softcap a `score_mod`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.subjects.attention_calls import block_mask, lookup

if TYPE_CHECKING:
    import torch


def score_mod(bias: torch.Tensor | None, softcap: float | None) -> Callable[..., Any] | None:
    import torch

    if bias is None and softcap is None:
        return None
    found = None if bias is None else lookup(bias)

    def change_score(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        capped = score if softcap is None else softcap * torch.tanh(score / softcap)
        return capped if found is None else capped + found(b, h, i, j)

    return change_score


def attend(
    flex_attention: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **given: Any,
) -> Any:
    blocks = None if mask is None else block_mask(mask, query, key)
    grouped = query.shape[1] != key.shape[1]
    return flex_attention(query, key, value, block_mask=blocks, enable_gqa=grouped, **given)


@declare(["no-empty", "no-gradients"])
def eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """Without torch.compile; on a CPU it gives no gradients."""
    from torch.nn.attention.flex_attention import flex_attention

    return attend(flex_attention, query, key, value, mask, score_mod=score_mod(bias, softcap), scale=scale)


@functools.cache
def compiled_flex() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 10_000
    return torch.compile(flex_attention, dynamic=False)


@declare(["no-empty", "no-gradients"], dtypes=("float32", "bfloat16", "float16"))
def compiled_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None
) -> Any:
    """Under torch.compile, which compiles anew for every shape."""
    return attend(compiled_flex(), query, key, value, mask)


FUNCTIONS = (
    "a mask of 0 and 1",
    "an additive mask",
    "a mask [4, 1, 3, 5] for batch 2",
    "softcap 0",
    "softcap negative",
    "a bias of integers",
)
"""`mask_mod` and `score_mod` are their author's functions, of whose arrays the library sees nothing."""
SLOW = "it compiles C++ for every shape, 3 to 15 seconds each time; name it to have it judged"
peer = partial(
    make_peer, "torch FlexAttention, ", __name__, "torch", ("torch",), operation="attention", documented=FUNCTIONS
)
PEERS = (
    peer("eager (CPU)", "eager"),
    peer("compiled (CPU), mask_mod", "compiled_attention", slow=SLOW, time_limit=300.0),
)
