"""A Qwen 3 language model with experts, with Hugging Face's names.

It is Qwen 3's with a mixture of experts in some blocks, which the entries of a checkpoint show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    gated,
    head_norms,
    mixture,
    require_entry,
    separate_heads,
)
from specification.loading.record import Computed
from specification.loading.rope import ROPE_KEYS, layers_of, rotary_of


def configuration(
    *,
    num_heads: int,
    key_heads: int,
    chosen: int = 8,
    weighting: str = "scores",
    eps: float = 1e-6,
    activation: str = "silu",
    attention_layers: Layers = ROTATING,
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `olmoe`."""
    experts = ExpertChoice(chosen=chosen, weighting=weighting)
    return causal(num_heads, eps, activation, attention_layers, experts=experts, empty_rows=empty_rows)


def read_routed(told: Mapping[str, Any]) -> list[bool]:
    """Read which layers have experts: every so many-th, but for those that are listed."""
    dense, every = told.get("mlp_only_layers") or (), told["decoder_sparse_step"]
    return [i not in dense and (i + 1) % every == 0 for i in range(told["num_hidden_layers"])]


DIALECT = decoder_dialect(
    "qwen3_moe",
    __doc__,
    "Yang et al., Qwen3 Technical Report, 2025 (arXiv:2505.09388); `Qwen3MoeForCausalLM` of Hugging Face transformers",
    separate_heads(),
    head_norms(),
    require_entry("mlp.up_proj.weight", gated()),
    mixture("M", everywhere=False),
    NORMS_BEFORE,
    layers=Computed(
        (*ROPE_KEYS, "num_hidden_layers", "sliding_window", "use_sliding_window"),
        lambda told: layers_of(
            {**told, "sliding_window": told.get("sliding_window") if told.get("use_sliding_window") else None},
            rotary_of(told),
        ),
    ),
    defaults={
        "qwen3_moe": DEFAULTS
        | {"attention_bias": False, "sliding_window": 4096, "use_sliding_window": False}
        | {"num_experts_per_tok": 8, "norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 1}
    },
    configuration=configuration,
    keys={"chosen": "num_experts_per_tok", "weighting": NORMALIZED},
    entries=ATTENTION_BIAS,
    sizes=SIZES | {"num_experts": "X", "num_local_experts": "X", "moe_intermediate_size": "M"},
    without_effect=(*ROUTER_TRAINING, "max_window_layers"),
    example=EXPERTS,
    marks=("*mlp.gate.weight",),  # without it, a Qwen 3 without experts
    routed=Computed(("mlp_only_layers", "decoder_sparse_step", "num_hidden_layers"), read_routed),
)
