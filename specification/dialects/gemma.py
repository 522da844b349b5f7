"""A Gemma language model with Hugging Face's names, of the first generation.

It is Llama's with embeddings times sqrt(E), RMS norms that multiply by 1 + weight, and GELU in the gate. The names are
Llama's too. Where the file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.loading.decoders import (
    DEFAULTS,
    NORMS_BEFORE,
    ROTATING,
    Layers,
    causal,
    decoder_dialect,
    gated,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS, alike


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "gelu_tanh",
    attention_layers: Layers = ROTATING,
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


DIALECT = decoder_dialect(
    "gemma",
    __doc__,
    "Gemma Team, Gemma, 2024 (arXiv:2403.08295); `GemmaForCausalLM` of Hugging Face transformers",
    separate_heads(),
    gated(),
    NORMS_BEFORE,
    layers=Computed((*ROPE_KEYS, "num_hidden_layers"), alike),
    defaults={
        "gemma": DEFAULTS | {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "attention_bias": False}
    },
    configuration=configuration,
    keys={"activation": Computed(("hidden_act",), activation_of)},
    fixed={"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False},
)
