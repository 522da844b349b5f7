"""A Gemma 3 language model with Hugging Face's names, for text alone.

It is Gemma 2 with norms of queries and keys in each head in place of softcaps, five layers with a sliding window to
each full one, and another base of the rotary embedding in these. Where the file has no output layer of its own, that is
the token table turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import AttentionLayer, Configuration
from specification.loading.decoders import (
    CAUSAL,
    KEYS,
    NORMS_AROUND,
    SIZES,
    TIED,
    causal,
    gated,
    head_norms,
    language_model,
    language_model_variant,
    separate_heads,
)
from specification.loading.record import Computed, ConfigFile, Dialect
from specification.loading.rope import (
    FULL,
    LAYER_KEYS,
    ROPE_KEYS,
    SLIDING,
    alternating,
    kinds_of,
    layers_of,
    rotary_by_kind,
)
from specification.rotary import Rotary

TABLE = language_model(
    separate_heads(),
    head_norms(),
    gated(),
    NORMS_AROUND,
)


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "gelu_tanh",
    attention_layers: tuple[AttentionLayer, ...] = (AttentionLayer(rotary=Rotary()),),
    scale: float = 256**-0.5,
    output_softcap: float | None = None,
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `gemma2`; empty_rows as in `llama`."""
    return causal(
        num_heads,
        eps,
        activation,
        attention_layers,
        norm_order="around",
        norm="rms_norm_plus_one",
        scale=scale,
        empty_rows=empty_rows,
        scaled_embedding=True,
        output_softcap=output_softcap,
    )


def layers(told: Mapping[str, Any]) -> tuple[AttentionLayer, ...]:
    """Read the layers, of which the last of so many is full."""
    kinds = kinds_of(told, alternating(told, told["sliding_window_pattern"]))
    rotaries = rotary_by_kind(told, {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}, scaled=(FULL,))
    return layers_of(told, [rotaries[kind] for kind in kinds], kinds)


DIALECT = Dialect(
    name="gemma3",
    about=__doc__,
    source="Gemma Team, Gemma 3, 2025 (arXiv:2503.19786); `Gemma3ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"gemma3_text": {}},
        keys=KEYS
        | {
            "activation": "hidden_activation",
            "attention_layers": Computed(
                (*ROPE_KEYS, *LAYER_KEYS, "rope_local_base_freq", "sliding_window_pattern"), layers
            ),
            "scale": Computed(("query_pre_attn_scalar",), lambda told: told["query_pre_attn_scalar"] ** -0.5),
            "output_softcap": "final_logit_softcapping",
        },
        defaults={
            "gemma3_text": {
                "rms_norm_eps": 1e-6,
                "hidden_activation": "gelu_pytorch_tanh",
                "rope_theta": 1e6,
                "rope_local_base_freq": 10000.0,
                "tie_word_embeddings": True,
                "attention_bias": False,
                "sliding_window": 4096,
                "sliding_window_pattern": 6,
                "query_pre_attn_scalar": 256,
                "final_logit_softcapping": None,
            }
        },
        fixed=CAUSAL | {"use_bidirectional_attention": False},
        sizes=SIZES,
        entries={"attention_bias": "layers.0.self_attn.q_proj.bias"},
        tied=TIED,
        without_effect=("_sliding_window_pattern", "cache_implementation", "hidden_act"),
    ),
)
