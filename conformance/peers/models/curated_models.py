"""curated-transformers: its BERT, Llama and GPT-NeoX, which read Hugging Face's configs and entries themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from curated_transformers.layers import AttentionMask
from curated_transformers.models import BERTEncoder, GPTNeoXCausalLM, LlamaCausalLM

USUAL = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "max_position_embeddings": 64}
"""Keys that every config.json of the families has, and without which it reads none."""


def load(kind: Any, config: Mapping[str, Any], state_dict: Mapping[str, Any]) -> Any:
    model = kind.from_hf_config(hf_config=USUAL | dict(config))
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    model.load_state_dict(kind.state_dict_from_hf(entries))
    return model.eval()


def read_padding(tokens: torch.Tensor, key_padding: torch.Tensor | None) -> Any:
    keep = torch.ones(tokens.shape, dtype=torch.bool) if key_padding is None else key_padding
    return AttentionMask(keep)


def build_bert(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = load(BERTEncoder, config, state_dict)

    @torch.no_grad()
    def encode(
        tokens: torch.Tensor, key_padding: torch.Tensor | None = None, token_types: torch.Tensor | None = None
    ) -> Any:
        return model(tokens, read_padding(tokens, key_padding), type_ids=token_types).last_hidden_layer_state

    return encode


def predict_with(model: Any) -> Callable[..., Any]:
    @torch.no_grad()
    def predict(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        return model(tokens, read_padding(tokens, key_padding)).logits

    return predict


def build_llama(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    return predict_with(load(LlamaCausalLM, config, state_dict))


def build_gpt_neox(config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    return predict_with(load(GPTNeoXCausalLM, config, state_dict))
