"""Hugging Face transformers: the attention functions that its models choose among.

`eager_attention_forward` is written out in every model's file; these are the kinds that differ. Models give it the mask
as numbers to add, 0 and the lowest of the dtype, and so do these adapters. `sdpa_attention_forward` takes booleans, and
`flex_attention_forward` a `BlockMask`. The layer that they all take has the attributes that they read, and no others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer
from conformance.subjects.attention_calls import additive, block_mask


def layer(query: Any, key: Any, **own: Any) -> Any:
    """What stands for the model's layer."""
    groups = query.shape[1] // max(key.shape[1], 1)
    return SimpleNamespace(**{"num_key_value_groups": groups, "is_causal": False, "training": False, **own})


def model_attention(name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return module.eager_attention_forward


def expand_to_rank_4(array: Any) -> Any:
    """Masks and biases of models have a batch and heads."""
    return array if array is None or array.ndim == 4 else array[None, None]


def call_attention(
    function: Callable[..., Any], module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any
) -> Any:
    """The output [B, H, Q, V]; the scale as models give it."""
    given["scaling"] = query.shape[-1] ** -0.5 if given["scaling"] is None else given["scaling"]
    return function(module, query, key, value, mask, **given)[0].transpose(1, 2)


def numbers(mask: Any, query: Any) -> Any:
    return None if mask is None else additive(mask, query.dtype)


def llama(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
    return call_attention(
        model_attention("llama"), layer(query, key), query, key, value, numbers(mask, query), scaling=scale
    )


def gemma2(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None
) -> Any:
    given = {"scaling": scale, "softcap": softcap}
    return call_attention(
        model_attention("gemma2"), layer(query, key), query, key, value, numbers(mask, query), **given
    )


def gpt_oss(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, sinks: Any = None
) -> Any:
    """The layer always has sinks; without any they are -inf."""
    sinks = query.new_full((query.shape[1],), -float("inf")) if sinks is None else sinks
    module = layer(query, key, sinks=sinks)
    return call_attention(model_attention("gpt_oss"), module, query, key, value, numbers(mask, query), scaling=scale)


@declare(["no-gqa"])
def t5(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None) -> Any:
    given = {"scaling": scale, "position_bias": bias}
    return call_attention(model_attention("t5"), layer(query, key), query, key, value, numbers(mask, query), **given)


def sdpa(query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    given = {"scaling": scale, "position_bias": expand_to_rank_4(bias)}
    return call_attention(sdpa_attention_forward, layer(query, key), query, key, value, expand_to_rank_4(mask), **given)


def make_flex(dtypes: tuple[str, ...] | None = None) -> Callable[..., Any]:
    @declare(["no-empty", "no-gradients"], dtypes=dtypes)
    def attention(
        query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None,
        softcap: float | None = None,
    ) -> Any:  # fmt: skip
        from transformers.integrations.flex_attention import flex_attention_forward

        (B, H, Q, _), K = query.shape, key.shape[2]
        blocks = None if mask is None else block_mask(mask, query, key)
        bias = None if bias is None else bias.expand(B, H, Q, K)
        given = {"scaling": scale, "softcap": softcap, "position_bias": bias}
        return call_attention(flex_attention_forward, layer(query, key), query, key, value, blocks, **given)

    return attention


flex, flex_eager = make_flex(("float32", "bfloat16", "float16")), make_flex()

MASKS = ("an additive mask", "a mask of 0 and 1", "a mask [4, 1, 3, 5] for batch 2")
"""Models make the masks, by functions that take no such ones."""
UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
SLOW = "it compiles C++ for many shapes, 3 to 15 seconds each time; name it to have it judged"


def peer(subject: str, path: str, **fields: Any) -> Peer:
    name, where = f"transformers {path}", f"{__name__}:{subject}"
    return Peer(name, where, "attention", "torch", ("transformers", "torch"), documented=MASKS, **fields)


PEERS = (
    peer("llama", "eager_attention_forward, Llama"),
    peer("gemma2", "eager_attention_forward, Gemma 2"),
    peer("gpt_oss", "eager_attention_forward, GPT-OSS"),
    peer("t5", "eager_attention_forward, T5"),
    peer("sdpa", "sdpa_attention_forward"),
    peer("flex_eager", "flex_attention_forward, not compiled (CPU)", environment=UNCOMPILED),
    peer("flex", "flex_attention_forward (CPU)", slow=SLOW, time_limit=300.0),
)
