"""A Mixtral language model with Hugging Face's names.

It is Mistral's with a mixture of experts in every block: each token goes through the experts of the largest scores,
whose softmax is divided by its sum over the chosen ones. A file has an entry for each expert, as all versions of
transformers write it; the stacked ones of transformers 5's modules are read too.
"""

from __future__ import annotations

from specification.configuration import Configuration, ExpertChoice
from specification.loading.decoders import (
    DEFAULTS,
    EXPERTS,
    NORMS_BEFORE,
    ROTATING,
    ROUTER_TRAINING,
    SIZES,
    Layers,
    causal,
    decoder_dialect,
    mixture,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, layers_of, rotary_of


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    chosen: int = 2,
    eps: float = 1e-5,
    activation: str = "silu",
    attention_layers: Layers = ROTATING,
    empty_rows: str = "zero",
) -> Configuration:
    """chosen: how many experts a token goes through. All else is as in the dialect `llama`."""
    experts = ExpertChoice(chosen=chosen)
    return causal(num_heads, eps, activation, attention_layers, experts=experts, empty_rows=empty_rows)


DIALECT = decoder_dialect(
    "mixtral",
    __doc__,
    "Jiang et al., Mixtral of Experts, 2024 (arXiv:2401.04088); `MixtralForCausalLM` of Hugging Face transformers",
    separate_heads(bias=False, output_bias=False),
    mixture(module="block_sparse_moe", names=("w1", "w3", "w2")),
    NORMS_BEFORE,
    layers=Computed((*ROPE_KEYS, *LAYER_KEYS), lambda told: layers_of(told, rotary_of(told))),
    defaults={
        "mixtral": DEFAULTS
        | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None}
        | {"num_experts_per_tok": 2, "num_local_experts": 8}
    },
    configuration=configuration,
    keys={"chosen": "num_experts_per_tok"},
    entries={},
    sizes=SIZES | {"num_local_experts": "X"},
    renamed={".mlp.": ".block_sparse_moe."},  # of modules of transformers 5, whose files keep the names of old
    without_effect=(*ROUTER_TRAINING, "router_jitter_noise"),
    example=EXPERTS,
)
