"""A Gemma language model with Hugging Face's names, of the first generation.

It is Llama's with embeddings times sqrt(E), RMS norms that multiply by 1 + weight, and GELU in the gate. The names are
Llama's too. Where the file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import AttentionLayer, Configuration
from specification.loading.decoders import (
    CAUSAL,
    DEFAULTS,
    KEYS,
    NORMS_BEFORE,
    SIZES,
    TIED,
    causal,
    gated,
    language_model,
    language_model_variant,
    separate_heads,
)
from specification.loading.record import Computed, ConfigFile, Dialect
from specification.loading.rope import ROPE_KEYS, alike
from specification.rotary import Rotary

TABLE = language_model(
    separate_heads(),
    gated(),
    NORMS_BEFORE,
)


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "gelu_tanh",
    attention_layers: tuple[AttentionLayer, ...] = (AttentionLayer(rotary=Rotary()),),
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `llama`. The activation is "gelu_tanh" where hidden_act is "gelu", too."""
    return causal(
        num_heads,
        eps,
        activation,
        attention_layers,
        norm="rms_norm_plus_one",
        empty_rows=empty_rows,
        scaled_embedding=True,
    )


def activation_of(told: Mapping[str, Any]) -> Any:
    """Read the activation; files of Gemma say "gelu" and mean its tanh form."""
    return "gelu_pytorch_tanh" if told["hidden_act"] == "gelu" else told["hidden_act"]


DIALECT = Dialect(
    name="gemma",
    about=__doc__,
    source="Gemma Team, Gemma, 2024 (arXiv:2403.08295); `GemmaForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"gemma": {}},
        keys=KEYS
        | {
            "activation": Computed(("hidden_act",), activation_of),
            "attention_layers": Computed((*ROPE_KEYS, "num_hidden_layers"), alike),
        },
        defaults={
            "gemma": DEFAULTS
            | {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "attention_bias": False}
        },
        fixed=CAUSAL | {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False},
        sizes=SIZES,
        entries={"attention_bias": "layers.0.self_attn.q_proj.bias"},
        tied=TIED,
    ),
)
