"""A Gemma 2 language model with Hugging Face's names.

Each sublayer has a norm before and after it, every second layer a sliding window, and scores and logits a softcap.
Where the file has no output layer of its own, that is the token table turned.
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
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, alternating, layers_of, rotary_of


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "gelu_tanh",
    attention_layers: Layers = ROTATING,
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


def layers(told: Mapping[str, Any]) -> Layers:
    """Read the layers, of which the first and every second after it has the window."""
    return layers_of(told, rotary_of(told), alternating(told, 2))


DIALECT = decoder_dialect(
    "gemma2",
    __doc__,
    "Gemma Team, Gemma 2, 2024 (arXiv:2408.00118); `Gemma2ForCausalLM` of Hugging Face transformers",
    separate_heads(),
    gated(),
    NORMS_AROUND,
    layers=Computed((*ROPE_KEYS, *LAYER_KEYS), layers),
    defaults={
        "gemma2": GEMMA_DEFAULTS
        | {"rope_theta": 10000.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    },
    configuration=configuration,
    keys=GEMMA_KEYS | {"softcap": "attn_logit_softcapping", "output_softcap": "final_logit_softcapping"},
    fixed={"use_bidirectional_attention": False},
    without_effect=("cache_implementation", "hidden_act"),
)
