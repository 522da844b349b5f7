"""torchtune: its Llama 3 and its Gemma 2, with entries as its own converters give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.peers.extra.torch_modules import import_module

LONGEST = 64
"""Rows of the table of rotary positions."""
FAMILIES = ("gemma", "llama3", "gemma2")


def import_from(family: str, name: str) -> Any:
    """A module of a family of models, without the tokenizers and data sets that the families' packages import."""
    for one in FAMILIES:
        import_module(f"torchtune.models.{one}._component_builders")
    return import_module(f"torchtune.models.{family}.{name}")


def read_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "num_kv_heads": config["num_key_value_heads"],
        "embed_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "max_seq_len": LONGEST,
        "norm_eps": config["rms_norm_eps"],
        "rope_base": config["rope_theta"],
    }


def convert(converter: Callable[..., Any], config: Mapping[str, Any], state_dict: Mapping[str, Any]) -> dict[str, Any]:
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    return converter(entries, heads, shared, config["hidden_size"], config["head_dim"])


def predict_with(model: Any) -> Callable[..., Any]:
    """Its masks are of queries and keys; without one it is causal."""
    model.eval()

    @torch.no_grad()
    def predict(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return model(tokens, mask=None if key_padding is None else causal & key_padding[:, None, :])

    return predict


def build_llama(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = import_from("llama3", "_component_builders").llama3(**read_sizes(config))
    model.load_state_dict(convert(import_module("torchtune.models.convert_weights").hf_to_tune, config, state_dict))
    return predict_with(model)


def build_gemma2(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    options = {
        "head_dim": config["head_dim"],
        "hidden_capping_value": config["attn_logit_softcapping"],
        "final_capping_value": config["final_logit_softcapping"],
        "sliding_window_size": config["sliding_window"],
        "query_pre_attn_scalar": config["query_pre_attn_scalar"],
    }
    model = import_from("gemma2", "_component_builders").gemma2(**read_sizes(config), **options)
    converter = import_from("gemma2", "_convert_weights").gemma2_hf_to_tune
    model.load_state_dict(convert(converter, config, state_dict))
    return predict_with(model)
