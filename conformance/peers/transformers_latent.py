"""Hugging Face transformers: the latent attention of DeepSeek-V2 and V3, with eager attention.

A module is given sines and cosines by the family's own module of rotary embeddings, and the mask as numbers to add, as
models give it. Its scale and its eps are the default ones. What eager attention of transformers gives where a row
allows nothing, or where NaN is hidden, has rows of its own, and is not asked here. Angles in float32 are declared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.cases.expectations import allowed_pairs
from conformance.peers.adapters import make_peer
from conformance.peers.rotary_layers import longest_of, parameters
from conformance.subjects.attention_calls import additive

if TYPE_CHECKING:
    import torch

    from conformance.cases.case import Case
    from specification.parameters import LatentAttention
    from specification.rotary import Scaling

FIELDS = {
    "key_value_down": "kv_a_proj_with_mqa",
    "key_value_norm": "kv_a_layernorm",
    "key_value_up": "kv_b_proj",
    "output": "o_proj",
}
DIRECT = {"query": "q_proj"}
COMPRESSED = {"query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query": "q_b_proj"}
"""By the name here, that of the module, by whether queries are compressed."""


def make_config(version: str, weights: LatentAttention, H: int, R: int, rope: dict[str, Any], **own: Any) -> Any:
    """A config with the sizes of the weights, but for the model's, which decides nothing and must divide by H."""
    import transformers

    width, rows = weights.query.weight.shape[1] // H - R, weights.output.weight.shape[0]
    return getattr(transformers, f"Deepseek{version}Config")(
        hidden_size=H, num_attention_heads=H, num_key_value_heads=H,
        q_lora_rank=None if weights.query_down is None else len(weights.query.weight),
        kv_lora_rank=len(weights.key_value_norm.weight), qk_rope_head_dim=R, qk_nope_head_dim=width,
        v_head_dim=rows // H, attention_bias=weights.output.bias is not None, rope_parameters=rope,
        attn_implementation="eager", **own,
    )  # fmt: skip


def name_entries(weights: LatentAttention) -> dict[str, torch.Tensor]:
    """The weights by the module's names; it has projections as [out, in]."""
    if weights.query.bias is not None:
        raise NotImplementedError("the projection of queries has no bias")
    entries = {}
    for ours, theirs in (FIELDS | (DIRECT if weights.query_down is None else COMPRESSED)).items():
        part = getattr(weights, ours)
        entries[f"{theirs}.weight"] = part.weight.mT if part.weight.ndim == 2 else part.weight
        if part.bias is not None:
            entries[f"{theirs}.bias"] = part.bias
    return entries


def attend(
    version: str, weights: LatentAttention, x: torch.Tensor, H: int, R: int, positions: torch.Tensor | None,
    base: float, scaling: Scaling | None, mask: torch.Tensor | None, **own: Any,
) -> Any:  # fmt: skip
    """The output of the module on its own, [B, T, E_out]."""
    import torch
    from transformers import models

    family = f"deepseek_{version.lower()}"
    modeling = getattr(getattr(models, family), f"modeling_{family}")
    longest = longest_of(scaling)
    config = make_config(version, weights, H, R, parameters(base, scaling), max_position_embeddings=longest, **own)
    with torch.device("meta"):
        layer = getattr(modeling, f"Deepseek{version}Attention")(config, 0)
    rows = torch.arange(x.shape[1]) if positions is None else positions
    rotation = getattr(modeling, f"Deepseek{version}RotaryEmbedding")(config)(x, rows if rows.ndim == 2 else rows[None])
    numbers = None if mask is None else additive(mask if mask.ndim == 4 else mask[None, None], x.dtype)
    given = {"hidden_states": x, "position_embeddings": rotation, "attention_mask": numbers}
    return torch.func.functional_call(layer, name_entries(weights), (), given)[0]


@declare(conventions={"angles": "float32"})
def deepseek_v2(
    parameters: LatentAttention, x: torch.Tensor, *, num_heads: int, rotary_width: int,
    positions: torch.Tensor | None = None, base: float = 10000.0, scaling: Scaling | None = None,
    length: int | None = None, mask: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """`DeepseekV2Attention`. The rotation finds the length of the sequence by itself."""
    return attend("V2", parameters, x, num_heads, rotary_width, positions, base, scaling, mask)


@declare(conventions={"angles": "float32"})
def deepseek_v3(
    parameters: LatentAttention, x: torch.Tensor, *, num_heads: int, rotary_width: int,
    positions: torch.Tensor | None = None, base: float = 10000.0, pairing: str = "interleaved",
    scaling: Scaling | None = None, length: int | None = None, mask: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """`DeepseekV3Attention`, with `rope_interleave` or without."""
    own = {"rope_interleave": pairing == "interleaved"}
    return attend("V3", parameters, x, num_heads, rotary_width, positions, base, scaling, mask, **own)


def leave_out_bias(case: Case) -> Case:
    """The call without the bias of queries."""
    return replace(case, inputs={name: array for name, array in case.inputs.items() if name != "query.bias"})


def has_full_rows(case: Case) -> bool:
    """Calls in which every token attends to something, and nothing is hidden but finite numbers."""
    (B, T, _), H = case.inputs["x"].shape, case.options["num_heads"]
    return not case.special and bool(allowed_pairs(case, (B, H, T, T)).any(-1).all())


def has_even_rows(case: Case) -> bool:
    """Calls whose queries of a head, and whose latents with their key, are of even width, as complex numbers are."""
    inputs, heads = case.inputs, case.options["num_heads"]
    return not (inputs["query.weight"].shape[1] // heads % 2 or inputs["key_value_down.weight"].shape[1] % 2)


peer = partial(
    make_peer, "transformers ", __name__, "torch", ("transformers", "torch"), operation="latent_attention",
    fitted=leave_out_bias,
)  # fmt: skip
PEERS = (
    peer("DeepseekV2Attention, eager", "deepseek_v2", takes=lambda case: has_even_rows(case) and has_full_rows(case)),
    peer("DeepseekV3Attention, eager", "deepseek_v3", takes=has_full_rows),
)
