"""A Phi-3 language model with Hugging Face's names.

It is Llama's with two fused projections: queries, keys and values in one, gate and inner in the other. Queries and keys
may be rotated in part (Phi-4-mini), and by LongRoPE. Where the file has no output layer of its own, that is the token
table turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.loading.decoders import DEFAULTS, NORMS_BEFORE, ROTATING, Layers, causal, decoder_dialect
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS, layers_of, rotary_of
from specification.loading.table import linear

PROJECTIONS = tuple(f"self_attention.{part}" for part in ("query", "key", "value"))
HEADS = "num_heads * D + key_heads * D + key_heads * D"


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-5,
    activation: str = "silu",
    attention_layers: Layers = ROTATING,
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `llama`."""
    return causal(num_heads, eps, activation, attention_layers, empty_rows=empty_rows)


def layers(told: Mapping[str, Any]) -> Layers:
    """Read the layers, which are alike. Older files call LongRoPE "su" or "yarn"."""
    given = dict(told.get("rope_scaling") or told.get("rope_parameters") or {})
    kind = given.pop("type", None)
    kind = given.get("rope_type", kind or "default")
    given["rope_type"] = "longrope" if kind in ("su", "yarn") else kind
    return layers_of(told, rotary_of(told, share=1.0, parameters=given))


DIALECT = decoder_dialect(
    "phi3",
    __doc__,
    "Abdin et al., Phi-3 Technical Report, 2024 (arXiv:2404.14219); `Phi3ForCausalLM` of Hugging Face transformers",
    linear("self_attn.qkv_proj", PROJECTIONS, "E", HEADS, bias=False),
    linear("self_attn.o_proj", "self_attention.output", "num_heads * D", "E", bias=False),
    linear("mlp.gate_up_proj", ("feed_forward.gate", "feed_forward.inner"), "E", "2 * F", bias=False),
    linear("mlp.down_proj", "feed_forward.outer", "F", "E", bias=False),
    NORMS_BEFORE,
    layers=Computed((*ROPE_KEYS, "partial_rotary_factor", "num_hidden_layers", "sliding_window"), layers),
    defaults={
        "phi3": DEFAULTS
        | {"rms_norm_eps": 1e-5, "sliding_window": None}
        | {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
    },
    configuration=configuration,
    fixed={"attention_bias": False},
    entries={},
)
