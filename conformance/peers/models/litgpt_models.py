"""litgpt: its GPT with the options of GPT-NeoX, Llama and Gemma 2, filled by its own converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from litgpt import GPT, Config
from litgpt.scripts import convert_hf_checkpoint as converters

LONGEST = 64
"""Positions that it makes its tables for."""
Entries = dict[str, torch.Tensor]


def make_model(config: Mapping[str, Any], **options: Any) -> GPT:
    sizes = Config(
        block_size=LONGEST,
        vocab_size=config["vocab_size"],
        padded_vocab_size=config["vocab_size"],
        n_layer=config["num_hidden_layers"],
        n_embd=config["hidden_size"],
        n_head=config["num_attention_heads"],
        intermediate_size=config["intermediate_size"],
        **options,
    )
    return GPT(sizes)


def predict_with(model: GPT, entries: Entries) -> Callable[..., Any]:
    model.load_state_dict(entries)
    model.eval()

    @torch.no_grad()
    def predict(tokens: torch.Tensor) -> Any:
        return model(tokens)

    return predict


def read(state_dict: Mapping[str, Any]) -> Entries:
    return {name: torch.from_numpy(array) for name, array in state_dict.items()}


def build_gpt_neox(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = make_model(
        config,
        norm_eps=config["layer_norm_eps"],
        rope_base=config["rotary_emb_base"],
        rotary_percentage=config["rotary_pct"],
        parallel_residual=config["use_parallel_residual"],
        gelu_approximate={"gelu": "none", "gelu_new": "tanh"}[config["hidden_act"]],
    )
    entries: Entries = {}
    converters.copy_weights_gpt_neox(model.config, entries, read(state_dict))
    return predict_with(model, entries)


def read_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options that Llama and Gemma 2 share."""
    return {
        "n_query_groups": config["num_key_value_heads"],
        "head_size": config["head_dim"],
        "norm_class_name": "RMSNorm",
        "norm_eps": config["rms_norm_eps"],
        "rope_base": config["rope_theta"],
        "rotary_percentage": 1.0,
        "parallel_residual": False,
        "bias": False,
        "mlp_class_name": "LLaMAMLP",
    }


def read_scaling(scaling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """It knows YaRN by what it has beside a factor and a length."""
    if scaling is None:
        return None
    names = {"original_max_position_embeddings": "original_max_seq_len"}
    found = {names.get(key, key): value for key, value in scaling.items() if key != "rope_type"}
    yarn = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0} if scaling["rope_type"] == "yarn" else {}
    return yarn | found


def build_llama(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = make_model(config, **read_decoder(config), rope_adjustments=read_scaling(config.get("rope_scaling")))
    entries: Entries = {}
    converters.copy_weights_hf_llama(model.config, {}, entries, read(state_dict))
    return predict_with(model, entries)


def build_gemma2(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    options = read_decoder(config) | {
        "name": "Gemma-2",  # by which it adds 1 to the weights of norms
        "mlp_class_name": "GemmaMLP",
        "gelu_approximate": "tanh",
        "scale_embeddings": True,
        "attention_scores_scalar": config["query_pre_attn_scalar"],
        "sliding_window_size": config["sliding_window"],
        "sliding_window_indices": [1 - i % 2 for i in range(config["num_hidden_layers"])],
        "post_attention_norm": True,
        "post_mlp_norm": True,
        "attention_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }
    model = make_model(config, **options)
    entries: Entries = {}
    converters.copy_weights_gemma_2({}, entries, read(state_dict))
    return predict_with(model, entries)
