"""A Qwen 2 language model with Hugging Face's names.

It is Llama's with a bias of queries, keys and values, and may have a sliding window in its upper layers. Where the file
has no output layer of its own, that is the token table turned.
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
    language_model,
    language_model_variant,
    norms,
    separate_heads,
)
from specification.loading.record import Computed, ConfigFile, Dialect
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, upper_windows
from specification.rotary import Rotary

TABLE = language_model(
    separate_heads(bias=True, output_bias=False),
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
    name="qwen2",
    about=__doc__,
    source="Yang et al., Qwen2 Technical Report, 2024 (arXiv:2407.10671); "
    "`Qwen2ForCausalLM` of Hugging Face transformers",
    variants=(language_model_variant(TABLE, configuration),),
    prefixes=("model.",),
    config=ConfigFile(
        families={"qwen2": {}},
        keys=KEYS
        | {
            "attention_layers": Computed(
                (*ROPE_KEYS, *LAYER_KEYS, "use_sliding_window", "max_window_layers"), upper_windows
            )
        },
        defaults={
            "qwen2": DEFAULTS
            | {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28, "layer_types": None}
        },
        fixed=CAUSAL,
        sizes=SIZES,
        tied=TIED,
    ),
)
