"""curated-transformers: attention, eager and on SDPA, RMS norm, rotary embeddings, ALiBi and feed-forward networks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer, require_one_axis
from conformance.peers.extra.torch_modules import (
    FLOAT32_ANGLES,
    TABLE,
    call_module,
    name_projections,
    table_length,
    widen_mask,
)

if TYPE_CHECKING:
    import torch

    from specification.parameters import FeedForward, GatedFeedForward


@declare(["no-gqa"])
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None) -> Any:
    """`ScaledDotProductAttention`, which always has a mask.

    Within `enable_torch_sdp` it also hides queries that stand where a key is hidden, which no rule is about.
    """
    import torch
    from curated_transformers.layers.attention import AttentionMask, ScaledDotProductAttention

    visible = torch.ones(query.shape[0], key.shape[2], dtype=torch.bool) if mask is None else widen_mask(mask)
    options = {"attention_mask": AttentionMask(visible), "use_causal_mask": False}
    module = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None)
    return module(query=query, key=key, value=value, **options)


@declare(["no-axes", "no-wide_weights"], conventions={"normalized": "inputs"})
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> Any:
    require_one_axis(weight)
    from curated_transformers.layers.normalization import RMSNorm

    return call_module(RMSNorm, {"weight": weight}, x, width=len(weight), eps=eps)


@declare(["no-empty"], conventions=FLOAT32_ANGLES, limits={"table": TABLE})
def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0) -> Any:
    """`RotaryEmbeddings` of a model in the dtype of x, which makes its table of 512 positions longer where it must."""
    from curated_transformers.layers.embeddings import RotaryEmbeddings

    table_length(positions)
    rows = positions if positions.ndim == 2 else positions.repeat(len(x), 1)
    return RotaryEmbeddings(x.shape[-1], base=base).to(x.dtype)(x, positions=rows)


@declare(dtypes=("float32",), conventions={"distances": "absolute"})
def alibi(num_heads: int, query_length: int, key_length: int, *, offset: int = 0) -> Any:
    """`AttentionLinearBiases.calculate_biases` of all positions, of which the rows of the queries are taken."""
    from curated_transformers.layers.attention import AttentionLinearBiases

    module = AttentionLinearBiases(n_attention_heads=num_heads, is_causal=False, is_inverted=False)
    biases = module.calculate_biases(max(offset + query_length, key_length))
    return biases[:, :, offset : offset + query_length, :key_length].clone()


def apply_network(parameters: FeedForward | GatedFeedForward, x: torch.Tensor, activation: str) -> Any:
    """`PointwiseFeedForward`, which has biases on all its layers or on none."""
    from curated_transformers.layers.activations import Activation
    from curated_transformers.layers.feedforward import PointwiseFeedForward

    gated = hasattr(parameters, "gate")
    names = ("gate", "intermediate", "output") if gated else ("intermediate", "output")
    named = name_projections(names, parameters)
    kind = {"gelu_tanh": "gelu_new"}.get(activation, activation)
    sizes = {"hidden_width": x.shape[-1], "intermediate_width": len(parameters[-1].weight)}
    options = {"activation": Activation(kind).module(), "use_bias": parameters[-1].bias is not None, "use_gate": gated}
    return call_module(PointwiseFeedForward, named, x, **sizes, **options)


@declare()
def network(parameters: FeedForward, x: torch.Tensor, *, activation: str = "relu") -> Any:
    return apply_network(parameters, x, activation)


@declare()
def gated_network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    return apply_network(parameters, x, activation)


def fits_into_memory(case: Case) -> bool:
    """Calls of few positions: the biases of all pairs of them are computed."""
    return max((case.options.get("offset") or 0) + case.options["query_length"], case.options["key_length"]) <= 1024


peer = partial(make_peer, "curated-transformers ", __name__, "torch", ("curated_transformers", "torch"), isolated=True)
PEERS = (
    peer("ScaledDotProductAttention", "attention", "attention", documented=("a mask of rank 1", "a mask of rank 3")),
    peer("RMSNorm", "rms_norm", "rms_norm"),
    peer("PointwiseFeedForward", "network", "feed_forward"),
    peer("PointwiseFeedForward, use_gate", "gated_network", "gated_feed_forward"),
    peer("RotaryEmbeddings", "rotary", "rotary_embedding"),
    peer("AttentionLinearBiases", "alibi", "alibi_bias", takes=fits_into_memory),
)
