"""litgpt: the attention of its models, with a softcap too, RMS norm, rotary embeddings and feed-forward networks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer, require_one_axis
from conformance.peers.extra.torch_modules import FLOAT32_ANGLES, TABLE, call_module, name_projections, table_length
from conformance.peers.peer import BROADCAST
from specification.rotary import LinearScaling, Llama3Scaling, YarnScaling

if TYPE_CHECKING:
    import torch

    from specification.parameters import FeedForward, GatedFeedForward

    Scaling = LinearScaling | Llama3Scaling | YarnScaling

YARN = ("beta_fast", "beta_slow", "truncate")
LLAMA3 = {"low_freq_factor": "low_frequency_factor", "high_freq_factor": "high_frequency_factor"}


@declare(["no-gqa"])
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, mask: torch.Tensor | None = None,
    softcap: float | None = None,
) -> Any:  # fmt: skip
    """`CausalSelfAttention.scaled_dot_product_attention` with a mask of booleans, as beside a cache.

    A call without a mask would be causal, so that one without any mask has a mask that shows all.
    """
    import torch
    from litgpt.model import CausalSelfAttention

    config = SimpleNamespace(
        attention_scores_scalar=None, head_size=query.shape[-1], attention_logit_softcapping=softcap
    )
    mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool) if mask is None else mask
    layer: Any = SimpleNamespace(config=config, mscale=1.0)
    return CausalSelfAttention.scaled_dot_product_attention(layer, query, key, value, mask).transpose(1, 2)


@declare(["no-axes"])
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, plus_one: bool = False) -> Any:
    require_one_axis(weight)
    from litgpt.model import RMSNorm

    return call_module(RMSNorm, {"weight": weight}, x, size=len(weight), eps=eps, add_unit_offset=plus_one)


def read_scaling(scaling: Scaling) -> dict[str, Any]:
    """`extra_config` of `build_rope_cache`."""
    config: dict[str, Any] = {"factor": scaling.factor}
    if isinstance(scaling, LinearScaling):
        return config
    config["original_max_seq_len"] = scaling.original_length
    if isinstance(scaling, Llama3Scaling):
        return config | {theirs: getattr(scaling, ours) for theirs, ours in LLAMA3.items()}
    return config | {name: getattr(scaling, name) for name in YARN} | {"mscale": 1.0}


@declare(["no-empty"], conventions=FLOAT32_ANGLES, limits={"table": TABLE})
def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, scaling: Scaling | None = None) -> Any:
    """`build_rope_cache` and `apply_rope`."""
    from litgpt.model import apply_rope, build_rope_cache

    config = None if scaling is None else read_scaling(scaling)
    tables = build_rope_cache(table_length(positions), x.shape[-1], base=base, extra_config=config)
    rows = positions if positions.ndim == 2 else positions[None]
    return apply_rope(x, *(table[rows] for table in tables))


def has_scaling(case: Case) -> bool:
    """Calls with a scaling that litgpt has, and no attention factor of their own."""
    scaling = case.options.get("scaling")
    known = scaling is None or isinstance(scaling, LinearScaling | Llama3Scaling | YarnScaling)
    return known and getattr(scaling, "attention_factor", None) is None


def apply_network(kind: str, names: tuple[str, ...], parameters: Any, x: torch.Tensor, **settings: Any) -> Any:
    from litgpt import model

    weight, bias = parameters[-1]
    config = SimpleNamespace(n_embd=x.shape[-1], intermediate_size=len(weight), bias=bias is not None, **settings)
    return call_module(getattr(model, kind), name_projections(names, parameters), x, config=config)


@declare()
def network(parameters: FeedForward, x: torch.Tensor, *, activation: str = "relu") -> Any:
    """`GptNeoxMLP`."""
    kinds = {"gelu": "none", "gelu_tanh": "tanh"}
    return apply_network("GptNeoxMLP", ("fc", "proj"), parameters, x, gelu_approximate=kinds[activation])


@declare()
def gated_network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """`LLaMAMLP`, or `GemmaMLP` where the activation is a GELU."""
    kinds = {"gelu": "none", "gelu_tanh": "tanh"}
    kind = "GemmaMLP" if activation in kinds else "LLaMAMLP"
    settings = {"gelu_approximate": kinds.get(activation)}
    return apply_network(kind, ("fc_1", "fc_2", "proj"), parameters, x, **settings)


def takes_activation(*names: str) -> Any:
    return lambda case: case.options.get("activation") in names


peer = partial(make_peer, "litgpt ", __name__, "torch", ("litgpt", "torch"), isolated=True)
PEERS = (
    peer("CausalSelfAttention.scaled_dot_product_attention", "attention", "attention", documented=BROADCAST),
    peer("RMSNorm", "rms_norm", "rms_norm"),
    peer("GptNeoxMLP", "network", "feed_forward", takes=takes_activation("gelu", "gelu_tanh")),
    peer("LLaMAMLP, GemmaMLP", "gated_network", "gated_feed_forward",
         takes=takes_activation("silu", "gelu", "gelu_tanh")),
    peer("build_rope_cache and apply_rope", "rotary", "rotary_embedding", takes=has_scaling),
)  # fmt: skip
