"""x-transformers: `Attend`, eager and on SDPA, norms, and positions of four kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import Options, adapt_attention, make_peer, require_one_axis
from conformance.peers.extra.fitting import LAST_AT_LAST, set_options
from conformance.peers.extra.torch_modules import FLOAT32_ANGLES, call_module, widen_mask
from conformance.peers.peer import BROADCAST, bottom_right, causal_flag

if TYPE_CHECKING:
    import torch

MASKED: Options = {"mask": lambda mask: {"mask": widen_mask(mask)}, "scale": "scale"}
CAUSAL: Options = {"mask": lambda mask: {"causal": causal_flag(mask, "causal")}, "scale": "scale"}
TILED = {"heads": "tiled"}
CAUSAL_FEATURES = ("structured", "causal", "scale", "cross", "value_width", "gradients")


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **keywords: Any) -> Any:
    """`Attend`, whose scale, softcap, sinks and kernel are chosen when it is made."""
    import torch
    from x_transformers.attend import Attend

    softcap, sinks = keywords.pop("softcap", None), keywords.pop("sinks", None)
    options: dict[str, Any] = {name: keywords.pop(name) for name in ("scale", "flash", "causal") if name in keywords}
    if softcap is not None:
        options |= {"softclamp_logits": True, "logit_softclamp_value": softcap}
    module = Attend(heads=query.shape[1], head_learned_sink=sinks is not None, **options)
    named = {} if sinks is None else {"head_attn_sink": sinks}
    return torch.func.functional_call(module, named, (query, key, value), keywords)[0]


def adapt(options: Options, *supports: str, flash: bool = False, **conventions: str) -> Callable[..., Any]:
    return adapt_attention(partial(attend, flash=flash), options, supports, conventions=TILED | conventions)


eager = adapt(MASKED | {"sinks": "sinks"})
eager_bias = adapt({"bias": "attn_bias", "scale": "scale"})
eager_softcap = adapt(MASKED | {"softcap": "softcap"})
eager_causal = adapt(CAUSAL, *CAUSAL_FEATURES, "gqa", causal="bottom_right")
flash = adapt(MASKED | {"bias": "attn_bias"}, flash=True)
flash_causal = adapt(CAUSAL, *CAUSAL_FEATURES, "gqa", flash=True, causal="bottom_right")


@declare(["no-axes", "no-wide_weights"])
def layer_norm(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """`LayerNorm`, which has no bias, and the eps of torch."""
    require_one_axis(weight)
    from x_transformers.x_transformers import LayerNorm

    return call_module(LayerNorm, {"gamma": weight}, x, dim=len(weight))


@declare(["no-axes", "no-wide_weights"])
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, plus_one: bool = False) -> Any:
    """`RMSNorm`, which divides by the norm of the row, or by 1e-12 if that is more; an eps is too small to be seen."""
    require_one_axis(weight)
    from x_transformers.x_transformers import RMSNorm

    return call_module(RMSNorm, {"g": weight}, x, dim=len(weight), unit_offset=plus_one)


@declare(["no-halves"], conventions=FLOAT32_ANGLES, width_multiple=4)
def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, rotary_width: int | None = None) -> Any:
    """`RotaryEmbedding` and `apply_rotary_pos_emb`, of pairs of neighbours, two at least."""
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    return apply_rotary_pos_emb(x, *RotaryEmbedding(rotary_width or x.shape[-1], base=base)(positions))


@declare(["no-empty"], dtypes=("float32",), conventions={"distances": "absolute"})
def alibi(num_heads: int, query_length: int, key_length: int, *, offset: int = 0) -> Any:
    """`AlibiPositionalBias.forward_custom_pos`, which is given positions."""
    import torch
    from x_transformers.x_transformers import AlibiPositionalBias

    queries = torch.arange(offset, offset + query_length)
    return AlibiPositionalBias(num_heads).forward_custom_pos(queries, torch.arange(key_length))[None]


@declare()
def relative(
    table: torch.Tensor, query_length: int, key_length: int, *, bidirectional: bool, furthest: int = 128,
    offset: int = 0,
) -> Any:  # fmt: skip
    """`RelativePositionBias`, whose last query stands at the last key."""
    from x_transformers.x_transformers import RelativePositionBias

    options = {"scale": 1.0, "causal": not bidirectional, "num_buckets": len(table), "max_distance": furthest}
    named = {"relative_attention_bias.weight": table}
    return call_module(RelativePositionBias, named, query_length, key_length, heads=table.shape[1], **options)[None]


def has_keys_for_all_queries(case: Case) -> bool:
    """Calls without a mask, or with a causal one at the last key of as many keys as queries, or more.

    With fewer keys the path begins at the first one (docs/found.md), which would be seen in the cases of other rules.
    """
    unmasked = case.options.get("mask") is None
    return bottom_right(case) and (unmasked or case.inputs["query"].shape[2] <= case.inputs["key"].shape[2])


peer = partial(make_peer, "x-transformers ", __name__, "torch", ("x_transformers", "torch"), isolated=True)
PEERS = (
    peer("Attend, mask and sinks", "eager", "attention", documented=BROADCAST),
    peer("Attend, attn_bias", "eager_bias", "attention", documented=BROADCAST),
    peer("Attend, softclamp_logits", "eager_softcap", "attention", documented=BROADCAST),
    peer("Attend, causal", "eager_causal", "attention", takes=bottom_right),
    peer("Attend, flash, mask and attn_bias", "flash", "attention", documented=BROADCAST),
    peer("Attend, flash, causal", "flash_causal", "attention", takes=has_keys_for_all_queries),
    peer("LayerNorm", "layer_norm", "layer_norm"),
    peer("RMSNorm", "rms_norm", "rms_norm", fitted=partial(set_options, operation="rms_norm", eps=1e-30)),
    peer("RotaryEmbedding", "rotary", "rotary_embedding"),
    peer("AlibiPositionalBias", "alibi", "alibi_bias"),
    peer("RelativePositionBias", "relative", "relative_position_bias", **LAST_AT_LAST),
)  # fmt: skip
