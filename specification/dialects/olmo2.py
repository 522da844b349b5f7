"""An OLMo 2 language model with Hugging Face's names.

It is Llama's with norms after each sublayer in place of those before, and with norms of queries and keys, each of all
heads together. Where the file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

from specification.configuration import Configuration
from specification.loading.decoders import (
    DEFAULTS,
    ROTATING,
    Layers,
    causal,
    decoder_dialect,
    gated,
    head_norms,
    norms,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS, alike


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
    return causal(num_heads, eps, activation, attention_layers, norm_order="after", empty_rows=empty_rows)


DIALECT = decoder_dialect(
    "olmo2",
    __doc__,
    "OLMo Team, 2 OLMo 2 Furious, 2024 (arXiv:2501.00656); `Olmo2ForCausalLM` of Hugging Face transformers",
    separate_heads(),
    head_norms("num_heads * D", "key_heads * D"),
    gated(),
    norms(post_attention_layernorm="self_attention_norm", post_feedforward_layernorm="feed_forward_norm"),
    layers=Computed((*ROPE_KEYS, "num_hidden_layers"), alike),
    defaults={"olmo2": DEFAULTS | {"rms_norm_eps": 1e-5, "attention_bias": False}},
    configuration=configuration,
)
