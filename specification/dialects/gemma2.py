"""A Gemma 2 language model with Hugging Face's names.

Each sublayer has a norm before and after it, every second layer a sliding window, and scores and logits a softcap.
Where the file has no output layer of its own, that is the token table turned.
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
    language_model,
    language_model_variant,
    separate_heads,
)
from specification.loading.record import Computed, ConfigFile, Dialect
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, alternating, layers_of, rotary_of
from specification.rotary import Rotary

TABLE = language_model(
    separate_heads(),
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
    softcap: float | None = 50.0,
    output_softcap: float | None = 30.0,
    empty_rows: str = "mean",
) -> Configuration:
    """As in the dialect `llama`, with hidden_activation in place of hidden_act.

    scale: query_pre_attn_scalar to the power of -1/2. softcap, output_softcap: attn_logit_softcapping and
    final_logit_softcapping of the checkpoint's configuration. empty_rows: "eager", which transformers 5.23 takes by
    default here, gives what "mean" does; its flex_attention gives 0.
    """
    return causal(
        num_heads,
        eps,
        activation,
        attention_layers,
        norm_order="around",
        norm="rms_norm_plus_one",
        scale=scale,
        softcap=softcap,
        empty_rows=empty_rows,
        scaled_embedding=True,
        output_softcap=output_softcap,
    )


def layers(told: Mapping[str, Any]) -> tuple[AttentionLayer, ...]:
    """Read the layers, of which the first and every second after it has the window."""
    return layers_of(told, rotary_of(told), alternating(told, 2))


DIALECT = Dialect(
    name="gemma2",
    about=__doc__,
    source="Gemma Team, Gemma 2, 2024 (arXiv:2408.00118); `Gemma2ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"gemma2": {}},
        keys=KEYS
        | {
            "activation": "hidden_activation",
            "attention_layers": Computed((*ROPE_KEYS, *LAYER_KEYS), layers),
            "scale": Computed(("query_pre_attn_scalar",), lambda told: told["query_pre_attn_scalar"] ** -0.5),
            "softcap": "attn_logit_softcapping",
            "output_softcap": "final_logit_softcapping",
        },
        defaults={
            "gemma2": {
                "rms_norm_eps": 1e-6,
                "hidden_activation": "gelu_pytorch_tanh",
                "rope_theta": 10000.0,
                "tie_word_embeddings": True,
                "attention_bias": False,
                "sliding_window": 4096,
                "query_pre_attn_scalar": 256,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            }
        },
        fixed=CAUSAL | {"use_bidirectional_attention": False},
        sizes=SIZES,
        entries={"attention_bias": "layers.0.self_attn.q_proj.bias"},
        tied=TIED,
        without_effect=("cache_implementation", "hidden_act"),
    ),
)
