"""torchtune: multi-head attention, norms, rotary embeddings, a gated network, and a loss in chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import adapt_layer_norm, make_peer, require_one_axis
from conformance.peers.extra.torch_modules import (
    FLOAT32_ANGLES,
    IN_FLOAT32,
    TABLE,
    WITHOUT_AMX,
    call_module,
    import_module,
    name_projections,
    table_length,
)
from conformance.peers.heads import OPERATION, inner_width, join_heads, one_mask_for_all_heads, resize_case
from specification.rotary import Llama3Scaling

if TYPE_CHECKING:
    import torch

    from specification.parameters import GatedFeedForward, MultiHeadAttention


@declare(["no-value_width", "no-empty", "no-gradients"])
def heads(
    parameters: MultiHeadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, num_heads: int,
    mask: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """`MultiHeadAttention`, whose keys and values are of the same tokens, so that their gradient is one."""
    import torch
    from torch.nn import Linear

    if key.shape != value.shape:
        raise NotImplementedError("keys and values are of the same tokens")
    kind = import_module("torchtune.modules.attention").MultiHeadAttention
    parts = [*(join_heads(part, torch.cat) for part in parameters[:3]), parameters.output]
    names = ("q_proj", "k_proj", "v_proj", "output_proj")
    with torch.device("meta"):
        layers = {
            name: Linear(part.weight.shape[0], part.weight.shape[1], bias=part.bias is not None)
            for name, part in zip(names, parts, strict=True)
        }
    width = parts[0].weight.shape[1] // num_heads
    options = {"embed_dim": num_heads * width, "num_heads": num_heads, "head_dim": width, "is_causal": False, **layers}
    options["num_kv_heads"] = parts[1].weight.shape[1] // width
    module = kind(**options).eval()
    rows = None if mask is None else (mask if mask.ndim == 2 else mask[:, 0]).expand(len(query), -1, -1)
    named = name_projections(names, parts)
    return torch.func.functional_call(module, named, (query, key), {"mask": rows})


def share_tokens(case: Case) -> Case:
    """The call with the tokens of the keys for values too, in one width."""
    if case.operation != OPERATION:
        return case
    fitted = resize_case(case, inner_width(case), one_bias=False)
    inputs = fitted.inputs | {"value": fitted.inputs["key"]}
    return replace(fitted, inputs=inputs)


def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **eps: float) -> Any:
    """`Fp32LayerNorm`."""
    kind = import_module("torchtune.modules.layer_norm").Fp32LayerNorm
    named = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return call_module(kind, named, x, normalized_shape=weight.shape, bias=bias is not None, **eps)


layer_norm = adapt_layer_norm(normalize, "eps")


@declare(["no-axes"])
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, plus_one: bool = False) -> Any:
    """`RMSNorm`, or `GemmaRMSNorm` where 1 is added to the weight."""
    require_one_axis(weight)
    name = "torchtune.models.gemma.rms_norm" if plus_one else "torchtune.modules.rms_norm"
    kind = getattr(import_module(name), "GemmaRMSNorm" if plus_one else "RMSNorm")
    return call_module(kind, {"scale": weight}, x, dim=len(weight), eps=eps)


@declare(["no-halves"], conventions=FLOAT32_ANGLES, limits={"table": TABLE}, scalings=["llama3"])
def rotary(
    x: torch.Tensor, positions: torch.Tensor, *, base: float = 10000.0, scaling: Llama3Scaling | None = None
) -> Any:
    """`RotaryPositionalEmbeddings`, or `Llama3ScaledRoPE`, of as many positions as needed."""
    sizes: dict[str, Any] = {"dim": x.shape[-1], "max_seq_len": table_length(positions), "base": base}
    if scaling is None:
        module = import_module("torchtune.modules.position_embeddings").RotaryPositionalEmbeddings(**sizes)
    else:
        factors = {"low_freq_factor": scaling.low_frequency_factor, "high_freq_factor": scaling.high_frequency_factor}
        factors |= {"scale_factor": scaling.factor, "old_context_len": scaling.original_length}
        module = import_module("torchtune.models.llama3_1._position_embeddings").Llama3ScaledRoPE(**sizes, **factors)
    rows = positions if positions.ndim == 2 else positions.expand(len(x), -1)
    return module(x.transpose(1, 2), input_pos=rows).transpose(1, 2)


@declare()
def network(parameters: GatedFeedForward, x: torch.Tensor, *, activation: str = "silu") -> Any:
    """`FeedForward` with `up_proj`."""
    import torch
    from torch import nn

    kind = import_module("torchtune.modules.feed_forward").FeedForward
    with torch.device("meta"):
        layers = [
            nn.Linear(part.weight.shape[0], part.weight.shape[1], bias=part.bias is not None) for part in parameters
        ]
    activations: dict[str, Any] = {"silu": nn.SiLU(), "gelu": nn.GELU(), "relu": nn.ReLU()}
    activations["gelu_tanh"] = nn.GELU("tanh")
    named = name_projections(("w1", "w3", "w2"), parameters)
    options = {"gate_proj": layers[0], "up_proj": layers[1], "down_proj": layers[2]}
    return call_module(kind, named, x, **options, activation=activations[activation])


@declare(["no-empty"], dtypes=("float32",))
def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, *, ignore: int | None = None, reduction: str = "mean"
) -> Any:
    """`CEWithChunkedOutputLoss` of up to 8 chunks of tokens, which gives float32 back for 16 bits."""
    if reduction != "mean" or logits.dtype.itemsize != 4:
        raise NotImplementedError("the loss is the mean, and in float32")
    kind = import_module("torchtune.modules.loss.ce_chunked_output_loss").CEWithChunkedOutputLoss
    rows, labels = logits.reshape(1, -1, logits.shape[-1]), targets.reshape(1, -1).long()
    loss = kind(**({} if ignore is None else {"ignore_index": ignore}))
    return loss(list(rows.chunk(8, dim=1)), labels)


peer = partial(
    make_peer, "torchtune ", __name__, "torch", ("torchtune", "torch"), isolated=True, environment=WITHOUT_AMX
)
PEERS = (
    peer("MultiHeadAttention", "heads", "multi_head_attention", fitted=share_tokens, takes=one_mask_for_all_heads),
    peer("Fp32LayerNorm", "layer_norm", "layer_norm", given=IN_FLOAT32),
    peer("RMSNorm, GemmaRMSNorm", "rms_norm", "rms_norm", given=IN_FLOAT32),
    peer("FeedForward", "network", "gated_feed_forward"),
    peer("RotaryPositionalEmbeddings, Llama3ScaledRoPE", "rotary", "rotary_embedding"),
    peer("CEWithChunkedOutputLoss", "cross_entropy", "cross_entropy",
         takes=lambda case: case.options.get("reduction", "mean") == "mean",
         documented=("-100 as a target that counts",)),
)  # fmt: skip
