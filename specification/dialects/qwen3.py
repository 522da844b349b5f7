"""A Qwen 3 language model with Hugging Face's names, without experts.

It is Llama's with norms of queries and keys in each head, and may have a sliding window in its upper layers. Where the
file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from specification.configuration import AttentionLayer, Configuration
from specification.loading.decoders import (
    CAUSAL,
    DEFAULTS,
    KEYS,
    SIZES,
    TIED,
    causal,
    gated,
    head_norms,
    language_model,
    language_model_variant,
    norms,
    separate_heads,
)
from specification.loading.record import Computed, ConfigFile, Dialect
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, upper_windows
from specification.rotary import Rotary

TABLE = language_model(
    separate_heads(),
    head_norms(),
    gated(),
    norms(input_layernorm="self_attention_norm", post_attention_layernorm="feed_forward_norm"),
)


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "silu",
    attention_layers: tuple[AttentionLayer, ...] = (AttentionLayer(rotary=Rotary()),),
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `llama`."""
    return causal(num_heads, eps, activation, attention_layers, empty_rows=empty_rows)


DIALECT = Dialect(
    name="qwen3",
    about=__doc__,
    source="Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388); "
    "`Qwen3ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"qwen3": {}},
        keys=KEYS
        | {
            "attention_layers": Computed(
                (*ROPE_KEYS, *LAYER_KEYS, "use_sliding_window", "max_window_layers"), upper_windows
            )
        },
        defaults={
            "qwen3": DEFAULTS
            | {"attention_bias": False}
            | {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28, "layer_types": None}
        },
        fixed=CAUSAL,
        sizes=SIZES,
        entries={"attention_bias": "layers.0.self_attn.q_proj.bias"},
        tied=TIED,
    ),
)
