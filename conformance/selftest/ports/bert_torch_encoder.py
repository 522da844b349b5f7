"""BERT on `torch.nn.TransformerEncoder`, whose modules take the checkpoint's entries under other names.

In evaluation without gradients, PyTorch takes its fused path there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}
ACTIVATIONS: dict[str, Any] = {"gelu": "gelu", "relu": "relu", "gelu_new": partial(F.gelu, approximate="tanh")}


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    eps = config.get("layer_norm_eps", 1e-12)
    layer = nn.TransformerEncoderLayer(
        config["hidden_size"],
        config["num_attention_heads"],
        dim_feedforward=config["intermediate_size"],
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
        layer_norm_eps=eps,
        batch_first=True,
    )
    encoder = nn.TransformerEncoder(layer, config["num_hidden_layers"], enable_nested_tensor=False)
    converted = {}
    for i in range(config["num_hidden_layers"]):
        for part in ("weight", "bias"):
            qkv = [entries[f"encoder.layer.{i}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            converted[f"layers.{i}.self_attn.in_proj_{part}"] = torch.cat(qkv)
            for name, theirs in NAMES.items():
                converted[f"layers.{i}.{name}.{part}"] = entries[f"encoder.layer.{i}.{theirs}.{part}"]
    encoder.load_state_dict(converted)
    encoder.to(getattr(torch, config.get("dtype", "float32"))).eval()
    dtype = next(encoder.parameters()).dtype
    words, positions, types = (
        entries[f"embeddings.{name}_embeddings.weight"].to(dtype) for name in ("word", "position", "token_type")
    )
    weight, bias = (entries[f"embeddings.LayerNorm.{part}"].to(dtype) for part in ("weight", "bias"))

    @torch.no_grad()
    def call(tokens: torch.Tensor, key_padding: Any = None, token_types: Any = None) -> Any:
        x = words[tokens] + types[torch.zeros_like(tokens) if token_types is None else token_types]
        x = x + positions[: tokens.shape[1]]
        x = F.layer_norm(x, weight.shape, weight, bias, eps)
        return encoder(x, src_key_padding_mask=None if key_padding is None else ~key_padding)

    return call
