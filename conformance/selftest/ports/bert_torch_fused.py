"""BERT in PyTorch, as one function: one projection for queries, keys and values, and PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    w = {name: torch.tensor(array, dtype=dtype) for name, array in state_dict.items()}
    heads, eps = config["num_attention_heads"], config.get("layer_norm_eps", 1e-12)
    kind = config.get("hidden_act", "gelu")
    layers = [f"encoder.layer.{i}." for i in range(config["num_hidden_layers"])]
    for layer in layers:
        for part in ("weight", "bias"):
            parts = [w.pop(f"{layer}attention.self.{name}.{part}") for name in ("query", "key", "value")]
            w[f"{layer}qkv.{part}"] = torch.cat(parts)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(w[f"{name}.bias"], x.flatten(0, -2), w[f"{name}.weight"].T).unflatten(0, x.shape[:-1])

    def activate(x: torch.Tensor) -> torch.Tensor:
        return x.relu() if kind == "relu" else F.gelu(x, approximate="tanh" if kind == "gelu_new" else "none")

    @torch.no_grad()
    def bert(tokens: torch.Tensor, key_padding: Any = None, token_types: Any = None) -> torch.Tensor:
        B, T = tokens.shape
        types = torch.zeros(B, T, dtype=torch.int32) if token_types is None else token_types
        x = F.embedding(types, w["embeddings.token_type_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][None, :T]
        x = norm("embeddings.LayerNorm", x + F.embedding(tokens, w["embeddings.word_embeddings.weight"]))
        mask = None if key_padding is None else key_padding.view(B, 1, 1, T)
        for layer in layers:
            q, k, v = dense(f"{layer}qkv", x).view(B, T, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
            x = norm(f"{layer}attention.output.LayerNorm", dense(f"{layer}attention.output.dense", y) + x)
            y = dense(f"{layer}output.dense", activate(dense(f"{layer}intermediate.dense", x)))
            x = norm(f"{layer}output.LayerNorm", y + x)
        return x

    return bert
