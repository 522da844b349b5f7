"""A Gemma 3 language model with Hugging Face's names, for text alone.

It is Gemma 2 with norms of queries and keys in each head in place of softcaps, five layers with a sliding window to
each full one, and another base of the rotary embedding in these. Where the file has no output layer of its own, that is
the token table turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.loading.decoders import (
    GEMMA_DEFAULTS,
    GEMMA_KEYS,
    NORMS_AROUND,
    ROTATING,
    Layers,
    causal,
    decoder_dialect,
    gated,
    head_norms,
    separate_heads,
)
from specification.loading.record import Computed
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


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "gelu_tanh",
    attention_layers: Layers = ROTATING,
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


def layers(told: Mapping[str, Any]) -> Layers:
    """Read the layers, of which the last of so many is full."""
    kinds = kinds_of(told, alternating(told, told["sliding_window_pattern"]))
    rotaries = rotary_by_kind(told, {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}, scaled=(FULL,))
    return layers_of(told, [rotaries[kind] for kind in kinds], kinds)


DIALECT = decoder_dialect(
    "gemma3",
    __doc__,
    "Gemma Team, Gemma 3, 2025 (arXiv:2503.19786); `Gemma3ForCausalLM` of Hugging Face transformers",
    separate_heads(),
    head_norms(),
    gated(),
    NORMS_AROUND,
    layers=Computed((*ROPE_KEYS, *LAYER_KEYS, "rope_local_base_freq", "sliding_window_pattern"), layers),
    defaults={
        "gemma3_text": GEMMA_DEFAULTS
        | {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}
        | {"final_logit_softcapping": None}
    },
    configuration=configuration,
    keys=GEMMA_KEYS | {"output_softcap": "final_logit_softcapping"},
    fixed={"use_bidirectional_attention": False},
    without_effect=("_sliding_window_pattern", "cache_implementation", "hidden_act"),
)
