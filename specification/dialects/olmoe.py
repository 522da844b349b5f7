"""An OLMoE language model with Hugging Face's names.

It is Llama's with norms of queries and keys, each of all heads together, and a mixture of experts in every block. The
weights of the chosen experts are their parts of the softmax over all experts, and add up to less than 1 unless
`norm_topk_prob` says otherwise.
"""

from __future__ import annotations

from specification.configuration import Configuration, ExpertChoice
from specification.loading.decoders import (
    ATTENTION_BIAS,
    DEFAULTS,
    EXPERTS,
    NORMALIZED,
    NORMS_BEFORE,
    ROTATING,
    ROUTER_TRAINING,
    SIZES,
    Layers,
    causal,
    decoder_dialect,
    head_norms,
    mixture,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS, alike


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    chosen: int = 8,
    weighting: str = "scores",
    eps: float = 1e-5,
    activation: str = "silu",
    attention_layers: Layers = ROTATING,
    empty_rows: str = "zero",
) -> Configuration:
    """chosen: how many experts a token goes through.

    weighting: "scores" for the chosen experts' parts of the softmax, "normalized" for these divided by their sum. All
    else is as in the dialect `llama`.
    """
    experts = ExpertChoice(chosen=chosen, weighting=weighting)
    return causal(num_heads, eps, activation, attention_layers, experts=experts, empty_rows=empty_rows)


DIALECT = decoder_dialect(
    "olmoe",
    __doc__,
    "Muennighoff et al., OLMoE, 2024 (arXiv:2409.02060); `OlmoeForCausalLM` of Hugging Face transformers",
    separate_heads(),
    head_norms("num_heads * D", "key_heads * D"),
    mixture(),
    NORMS_BEFORE,
    layers=Computed((*ROPE_KEYS, "num_hidden_layers"), alike),
    defaults={
        "olmoe": DEFAULTS
        | {"rms_norm_eps": 1e-5, "attention_bias": False, "clip_qkv": None}
        | {"num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": False}
    },
    configuration=configuration,
    keys={"chosen": "num_experts_per_tok", "weighting": NORMALIZED},
    fixed={"clip_qkv": None},
    entries=ATTENTION_BIAS,
    sizes=SIZES | {"num_experts": "X"},
    without_effect=ROUTER_TRAINING,
    example=EXPERTS,
)
