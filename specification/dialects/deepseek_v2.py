"""A DeepSeek-V2 language model with Hugging Face's names.

Its attention is latent: keys and values of all heads come from one short vector of a token, beside one rotated key that
all heads share. The first blocks have a gated feed-forward network, all others a mixture of experts with experts that
every token goes through. The weights of chosen experts are their parts of the softmax over all of them, times a factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration, ExpertChoice
from specification.loading.decoders import (
    DEFAULTS,
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
    factor: float = 1.0,
    eps: float = 1e-6,
    activation: str = "silu",
) -> Configuration:
    """chosen: how many experts a token goes through.

    attention_layers: how each layer rotates, as in `Configuration`: pairs are interleaved. scale: of the scores;
    None for 1 / sqrt(D + R), without YaRN's factor. groups, chosen_groups: of experts, n_group and topk_group of the
    checkpoint's configuration (MOE-2). factor: routed_scaling_factor. All else is as in the dialect `llama`.
    """
    experts = ExpertChoice(
        chosen=chosen,
        groups=groups,
        chosen_groups=chosen_groups,
        group_score="largest",
        weighting="scores",
        scale=factor,
    )
    own: Any = {"scale": "head_width" if scale is None else scale, "experts": experts}
    return causal(num_heads, eps, activation, attention_layers, **own)


def read_groups(told: Mapping[str, Any], key: str) -> int:
    """Read a number of groups, which counts where the method of choice has groups."""
    method = told["topk_method"]
    if method not in ("greedy", "group_limited_greedy"):
        raise ValueError(f"topk_method is {method!r}, which is not known")
    return read_group_count(told, key) if method == "group_limited_greedy" else 1


DIALECT = latent_dialect(
    "deepseek_v2",
    __doc__,
    "DeepSeek-AI, DeepSeek-V2, 2024 (arXiv:2405.04434); `DeepseekV2ForCausalLM` of Hugging Face transformers",
    layers=Computed((*ROPE_KEYS, "num_hidden_layers", "qk_rope_head_dim"), read_latent_layers),
    defaults={
        "deepseek_v2": DEFAULTS
        | {"attention_bias": False, "mlp_bias": False, "max_position_embeddings": 2048, "norm_topk_prob": False}
        | {"topk_method": "greedy", "n_group": None, "topk_group": None, "routed_scaling_factor": 1.0}
        | {"first_k_dense_replace": 0}
    },
    configuration=configuration,
    keys={
        "groups": Computed(("n_group", "topk_method"), lambda told: read_groups(told, "n_group")),
        "chosen_groups": Computed(("topk_group", "topk_method"), lambda told: read_groups(told, "topk_group")),
    },
    fixed={
        "norm_topk_prob": False,
        "mlp_bias": False,
        "rope_interleave": True,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
    },
)
