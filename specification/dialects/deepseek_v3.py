"""A DeepSeek-V3 or R1 language model with Hugging Face's names, from an unquantised checkpoint.

It is DeepSeek-V2's with another choice of experts: scores are sigmoids, a bias for each expert takes part in the choice
and not in the weights, groups of experts are chosen by their two best, and the weights are divided by their sum.
"""

from __future__ import annotations

from typing import Any

from specification.configuration import Configuration, ExpertChoice
from specification.loading.decoders import (
    DEFAULTS,
    NORMALIZED,
    Layers,
    causal,
    latent_dialect,
    read_group_count,
    read_latent_layers,
)
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS


def configuration(
    *,
    num_heads: int,
    chosen: int,
    attention_layers: Layers,
    scale: float | None = None,
    groups: int = 1,
    chosen_groups: int = 1,
    weighting: str = "normalized",
    factor: float = 2.5,
    eps: float = 1e-6,
    activation: str = "silu",
) -> Configuration:
    """weighting: "normalized" where the chosen scores are divided by their sum, else "scores".

    All else is as in the dialect `deepseek_v2`.
    """
    experts = ExpertChoice(
        chosen=chosen,
        scoring="sigmoid",
        groups=groups,
        chosen_groups=chosen_groups,
        weighting=weighting,
        scale=factor,
    )
    own: Any = {"scale": "head_width" if scale is None else scale, "experts": experts}
    return causal(num_heads, eps, activation, attention_layers, **own)


DIALECT = latent_dialect(
    "deepseek_v3",
    __doc__,
    "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (arXiv:2412.19437); `DeepseekV3ForCausalLM` of Hugging Face "
    "transformers",
    choice_bias=True,
    layers=Computed(
        (*ROPE_KEYS, "num_hidden_layers", "qk_rope_head_dim", "rope_interleave"),
        lambda told: read_latent_layers(told, "interleaved" if told["rope_interleave"] else "halves"),
    ),
    defaults={
        "deepseek_v3": DEFAULTS
        | {"attention_bias": False, "max_position_embeddings": 4096, "rope_interleave": True, "norm_topk_prob": True}
        | {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3}
    },
    configuration=configuration,
    keys={
        "groups": Computed(("n_group",), lambda told: read_group_count(told, "n_group")),
        "chosen_groups": Computed(("topk_group",), lambda told: read_group_count(told, "topk_group")),
        "weighting": NORMALIZED,
    },
    fixed={"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
)
