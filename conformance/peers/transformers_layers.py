"""Layers of Hugging Face transformers: Gemma's norm, gated networks, T5's biases."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer

if TYPE_CHECKING:
    import torch

    from specification.parameters import GatedFeedForward

ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
"""By the name here, that of transformers where it is another."""


def module(family: str, kind: str, *arguments: Any) -> Any:
    """A module without numbers, for one call: `functional_call` puts parameters into it meanwhile."""
    import torch
    from transformers import models

    made = getattr(getattr(getattr(models, family), f"modeling_{family}"), kind)
    with torch.device("meta"):
        return made(*arguments)


@declare()
def gemma_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, plus_one: bool = False) -> Any:
    """`GemmaRMSNorm`, whose weight is 1 + w."""
    import torch

    if not plus_one:
        raise NotImplementedError("GemmaRMSNorm always adds 1 to its weight")
    return torch.func.functional_call(module("gemma", "GemmaRMSNorm", 1, eps), {"weight": weight}, (x,))


def gated_feed_forward(family: str, kind: str, activation: str, parameters: GatedFeedForward, x: torch.Tensor) -> Any:
    import torch

    biased = parameters.gate.bias is not None
    settings: dict[str, Any] = {"hidden_size": 1, "intermediate_size": 1, "mlp_bias": biased}
    settings["hidden_act"] = ACTIVATIONS.get(activation, activation)
    layer, named = module(family, kind, SimpleNamespace(**settings)), {}
    for part, projection in zip(("gate_proj", "up_proj", "down_proj"), parameters, strict=True):
        named[f"{part}.weight"] = projection.weight.T
        named |= {f"{part}.bias": projection.bias} if biased else {}
    return torch.func.functional_call(layer, named, (x,))


@declare()
def llama_network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """`LlamaMLP`."""
    return gated_feed_forward("llama", "LlamaMLP", activation, parameters, x)


@declare()
def gemma_network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """`GemmaMLP`, which has no biases."""
    return gated_feed_forward("gemma", "GemmaMLP", activation, parameters, x)


@declare()
def t5_bias(
    table: torch.Tensor,
    query_length: int,
    key_length: int,
    *,
    bidirectional: bool,
    furthest: int = 128,
    offset: int = 0,
) -> Any:
    """`T5Attention.compute_bias`, on a layer that has nothing but this table."""
    from torch.nn import functional
    from transformers.models.t5.modeling_t5 import T5Attention

    layer: Any = SimpleNamespace(
        relative_attention_bias=lambda buckets: functional.embedding(buckets, table),
        _relative_position_bucket=T5Attention._relative_position_bucket,
        relative_attention_num_buckets=len(table),
        relative_attention_max_distance=furthest,
        is_decoder=not bidirectional,
    )
    return T5Attention.compute_bias(layer, query_length, key_length, table.device, offset)


peer = partial(make_peer, "transformers ", __name__, "torch", ("transformers", "torch"))
PEERS = (
    peer(
        "GemmaRMSNorm",
        "gemma_norm",
        "rms_norm",
        takes=lambda case: bool(case.options.get("plus_one")) and case.inputs["weight"].ndim == 1,
    ),
    peer("LlamaMLP", "llama_network", "gated_feed_forward"),
    peer("GemmaMLP", "gemma_network", "gated_feed_forward", takes=lambda case: "gate.bias" not in case.inputs),
    peer("T5Attention.compute_bias", "t5_bias", "relative_position_bias"),
)
