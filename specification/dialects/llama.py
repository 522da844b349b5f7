"""A language model of Llama's kind with Hugging Face's names: Llama 1 to 3, Mistral, SmolLM 1 to 3.

Norms are RMS norms before each sublayer, positions are rotary, and the feed-forward network is gated. Where the file
has no output layer of its own, that is the token table turned.

Mistral has a sliding window, and SmolLM 3 layers without positions. No entry of a checkpoint says what a layer does:
`load_pretrained` reads it from the config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.loading.decoders import (
    ATTENTION_BIAS,
    DEFAULTS,
    NORMS_BEFORE,
    Layers,
    decoder_dialect,
    gated,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import FULL, LAYER_KEYS, ROPE_KEYS, SLIDING, layers_of, rotary_of


def layers(told: Mapping[str, Any]) -> Layers:
    """Read the layers. In SmolLM 3 one in four does not rotate, and has the window where there is one."""
    if told["model_type"] == "mistral" and (told.get("attention_bias") or told.get("mlp_bias")):
        raise ValueError("a mistral has no biases, and attention_bias or mlp_bias says that it has")
    rotary, count = rotary_of(told), told["num_hidden_layers"]
    if told["model_type"] != "smollm3":
        return layers_of(told, rotary)
    every = told["no_rope_layer_interval"]
    rotates = (told.get("no_rope_layers") or [(i + 1) % every for i in range(count)])[:count]
    window = told.get("sliding_window") if told.get("use_sliding_window") else None
    kinds = [FULL if window is None or one else SLIDING for one in rotates]
    return layers_of({**told, "sliding_window": window}, [rotary if one else None for one in rotates], kinds)


DIALECT = decoder_dialect(
    "llama",
    __doc__,
    "Touvron et al., Llama, 2023 (arXiv:2302.13971); Jiang et al., Mistral 7B, 2023 (arXiv:2310.06825); "
    "`LlamaForCausalLM`, `MistralForCausalLM` and `SmolLM3ForCausalLM` of Hugging Face transformers",
    separate_heads(),
    gated("*mlp.*_proj.bias"),
    NORMS_BEFORE,
    layers=Computed(
        (*ROPE_KEYS, *LAYER_KEYS, "use_sliding_window", "no_rope_layers", "no_rope_layer_interval"), layers
    ),
    defaults={
        "llama": DEFAULTS | {"attention_bias": False, "mlp_bias": False},
        "mistral": DEFAULTS | {"attention_bias": False, "mlp_bias": False, "sliding_window": 4096},
        "smollm3": DEFAULTS
        | {"rope_theta": 2e6, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}
        | {"sliding_window": None, "use_sliding_window": False, "layer_types": None}
        | {"no_rope_layers": None, "no_rope_layer_interval": 4},
    },
    entries=ATTENTION_BIAS | {"mlp_bias": "layers.0.mlp.gate_proj.bias"},
    ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # of older files, computed here
)
