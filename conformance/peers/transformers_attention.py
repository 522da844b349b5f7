"""Hugging Face transformers: the attention functions that its models choose among.

`eager_attention_forward` is written out in every model's file; these are the kinds that differ. Models give it the mask
as numbers to add, 0 and the lowest of the dtype, and so do these adapters. `sdpa_attention_forward` takes booleans, and
`flex_attention_forward` a `BlockMask`. The layer that they all take has the attributes that they read, and no others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.peers.adapters import Options, adapt_attention, make_peer
from conformance.subjects.attention_calls import additive, block_mask

if TYPE_CHECKING:
    import torch


def attend(
    function: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float | None,
    own: dict[str, Any] | None = None,
    **given: Any,
) -> Any:
    """The output [B, H, Q, V]; the scale as models give it. own: what the layer has beside what all have."""
    groups = query.shape[1] // max(key.shape[1], 1)
    layer = SimpleNamespace(num_key_value_groups=groups, is_causal=False, training=False, **(own or {}))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return function(layer, query, key, value, mask, scaling=scaling, **given)[0].transpose(1, 2)


def attend_eagerly(
    model: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    own: dict[str, Any] | None = None,
    **given: Any,
) -> Any:
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    numbers = None if mask is None else additive(mask, query.dtype)
    return attend(module.eager_attention_forward, query, key, value, numbers, own=own, **given)


def attend_with_sinks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, sinks: torch.Tensor | None, **given: Any
) -> Any:
    """The layer of GPT-OSS always has sinks; without any they are -inf."""
    sinks = query.new_full((query.shape[1],), -float("inf")) if sinks is None else sinks
    return attend_eagerly("gpt_oss", query, key, value, own={"sinks": sinks}, **given)


def attend_fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    **given: Any,
) -> Any:
    """Masks and biases of models have a batch and heads."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    mask, bias = (a if a is None or a.ndim == 4 else a[None, None] for a in (mask, position_bias))
    return attend(sdpa_attention_forward, query, key, value, mask, position_bias=bias, **given)


def attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    **given: Any,
) -> Any:
    from transformers.integrations.flex_attention import flex_attention_forward

    (B, H, Q, _), K = query.shape, key.shape[2]
    blocks = None if mask is None else block_mask(mask, query, key)
    bias = None if position_bias is None else position_bias.expand(B, H, Q, K)
    return attend(flex_attention_forward, query, key, value, blocks, position_bias=bias, **given)


MASK: Options = {"mask": "mask", "scale": "scaling"}
BIAS: Options = {"mask": "mask", "bias": "position_bias", "scale": "scaling"}
SOFTCAP: Options = {"softcap": "softcap"}
llama = adapt_attention(partial(attend_eagerly, "llama"), MASK)
gemma2 = adapt_attention(partial(attend_eagerly, "gemma2"), MASK | SOFTCAP)
gpt_oss = adapt_attention(attend_with_sinks, MASK | {"sinks": "sinks"})
t5 = adapt_attention(partial(attend_eagerly, "t5"), BIAS, ["no-gqa"])
sdpa = adapt_attention(attend_fused, BIAS)
flex, flex_eager = (
    adapt_attention(attend_in_blocks, BIAS | SOFTCAP, ["no-empty", "no-gradients"], dtypes=dtypes)
    for dtypes in (("float32", "bfloat16", "float16"), None)
)

MASKS = ("an additive mask", "a mask of 0 and 1", "a mask [4, 1, 3, 5] for batch 2")
"""Models make the masks, by functions that take no such ones."""
UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
SLOW = "it compiles C++ for many shapes, 3 to 15 seconds each time; name it to have it judged"

peer = partial(
    make_peer, "transformers ", __name__, "torch", ("transformers", "torch"), operation="attention", documented=MASKS
)
PEERS = (
    peer("eager_attention_forward, Llama", "llama"),
    peer("eager_attention_forward, Gemma 2", "gemma2"),
    peer("eager_attention_forward, GPT-OSS", "gpt_oss"),
    peer("eager_attention_forward, T5", "t5"),
    peer("sdpa_attention_forward", "sdpa"),
    peer("flex_attention_forward, not compiled (CPU)", "flex_eager", environment=UNCOMPILED),
    peer("flex_attention_forward (CPU)", "flex", slow=SLOW, time_limit=300.0),
)
