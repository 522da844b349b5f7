"""A GPT-OSS language model with Hugging Face's names, or the attention of one of its layers.

It is Llama's with biases of all projections and a sink in each head, a number that takes part in the softmax and has no
value. Queries and keys are rotated, with YaRN, and every second layer has a sliding window. Every block has a mixture
of experts, whose router has a bias; the weights are a softmax over the chosen experts alone, and the gate is clamped.
Checkpoints are read unquantised.

The attention alone has the names within `self_attn`; its caller gives the causal mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specification.configuration import AttentionLayer, Configuration, ExpertChoice
from specification.loading.decoders import (
    DEFAULTS,
    EXAMPLE,
    NORMS_BEFORE,
    ROUTER_TRAINING,
    SIZES,
    Layers,
    causal,
    decoder_dialect,
    separate_heads,
)
from specification.loading.record import Computed, Variant
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, alternating, layers_of, rotary_of
from specification.loading.table import Row, array, each, linear, table
from specification.parameters import MultiHeadAttention
from specification.rotary import Rotary, YarnScaling

ROTARY = Rotary(base=150000.0, scaling=YarnScaling(factor=32.0, original_length=4096, truncate=False))
"""Of GPT-OSS 20B and 120B."""
ROPE_PARAMETERS = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "truncate": False, "original_max_position_embeddings": 4096}  # fmt: skip
"""The same as a config.json writes it."""

# --- the whole model --------------------------------------------------------------------------------------------------

SIDES = ("experts.gate", "experts.inner")
MIXTURE = each(
    "mlp.",
    "feed_forward.",
    linear("router", "router", "E", "X"),
    (
        Row("experts.gate_up_proj", tuple(f"{side}.weight" for side in SIDES), ("X", "E", "F * 2"), stacked=True),
        Row("experts.gate_up_proj_bias", tuple(f"{side}.bias" for side in SIDES), ("X", "F * 2"), stacked=True),
        Row("experts.down_proj", "experts.outer.weight", ("X", "F", "E"), stacked=True),
        Row("experts.down_proj_bias", "experts.outer.bias", ("X", "E"), stacked=True),
    ),
)
"""Gate and inner projection alternate in the columns of one entry."""


def read_layers(told: Mapping[str, Any]) -> Layers:
    """Read the layers: every second one, beginning with the first, has the window."""
    return layers_of(told, rotary_of(told), alternating(told, 2))


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    attention_layers: Layers,
    chosen: int = 4,
    eps: float = 1e-5,
) -> Configuration:
    """key_heads: heads of keys and values.

    chosen: how many experts a token goes through. eps: rms_norm_eps of the checkpoint's configuration.
    attention_layers: how each layer rotates queries and keys, and how far it looks, as in `Configuration`.
    """
    experts = ExpertChoice(chosen=chosen, scoring="none", weighting="softmax")
    return causal(num_heads, eps, "clamped_swiglu", attention_layers, experts=experts)


WHOLE = decoder_dialect(
    "gpt_oss",
    __doc__,
    "OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025 (arXiv:2508.10925); "
    "`GptOssForCausalLM` of Hugging Face transformers",
    separate_heads(),
    array("self_attn.sinks", "self_attention.sinks", "num_heads"),
    MIXTURE,
    NORMS_BEFORE,
    layers=Computed((*ROPE_KEYS, *LAYER_KEYS), read_layers),
    defaults={
        "gpt_oss": DEFAULTS
        | {"rms_norm_eps": 1e-5, "rope_theta": 150000.0, "rope_parameters": ROPE_PARAMETERS, "sliding_window": 128}
        | {"attention_bias": True, "num_experts_per_tok": 4, "max_position_embeddings": 131072, "head_dim": 64}
        | {"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "layer_types": None}
    },
    configuration=configuration,
    keys={"chosen": "num_experts_per_tok"},
    fixed={"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    sizes=SIZES | {"num_local_experts": "X"},
    without_effect=(*ROUTER_TRAINING, "experts_per_token", "initial_context_length"),
    example=replace(
        EXAMPLE,
        hyperparameters={
            "num_heads": 4,
            "key_heads": 2,
            "chosen": 2,
            "attention_layers": (AttentionLayer(window=(2, 0), rotary=ROTARY),),
        },
        sizes={"D": 4, "X": 3},
        without=("lm_head.weight",),
    ),
)

# --- the attention alone ----------------------------------------------------------------------------------------------

BIASED = "*_proj.bias"
ATTENTION = table(
    linear("q_proj", "query", "E", "num_heads * D", bias=BIASED),
    linear("k_proj", "key", "E", "key_heads * D", bias=BIASED),
    linear("v_proj", "value", "E", "key_heads * D", bias=BIASED),
    linear("o_proj", "output", "num_heads * D", "E", bias=BIASED),
    array("sinks", "sinks", "num_heads"),
)


def attention_configuration(
    *, num_heads: int, key_heads: int, window: int | None = None, rotary: Rotary = ROTARY
) -> Configuration:
    """key_heads: heads of keys and values.

    window: sliding_window of the checkpoint's configuration, which counts the query's own key; None for a full layer.
    rotary: how queries and keys are rotated; as in GPT-OSS 20B and 120B unless given.
    """
    layer = AttentionLayer(window=None if window is None else (window - 1, 0), rotary=rotary)
    return Configuration(num_heads=num_heads, attention_layers=(layer,))


DIALECT = replace(
    WHOLE,
    variants=(
        Variant(
            name="one attention",
            structure=MultiHeadAttention,
            table=ATTENTION,
            configuration=attention_configuration,
            called_with="x, `mask`",
            gives="[B, T, E]",
            marks=("q_proj.weight",),
            heads_share="",
        ),
        replace(WHOLE.variants[0], name="a whole model"),
    ),
)
