"""GPT-NeoX in PyTorch: modules with the checkpoint's names, a fused projection that is split head by head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head, strip_prefix


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, bias = config["hidden_size"], config.get("attention_bias", True)
        self.heads = config["num_attention_heads"]
        self.head_width = width // self.heads
        self.rotary_width = int(self.head_width * config.get("rotary_pct", 0.25))
        self.base = config.get("rotary_emb_base", 10000.0)
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.dense = nn.Linear(width, width, bias=bias)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        width = self.rotary_width
        turned, rest = x[..., :width], x[..., width:]
        inv_freq = self.base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(x.shape[-2]).double(), inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), dim=-1)
        return torch.cat((turned * cos + half * sin, rest), dim=-1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        B, T, E = x.shape
        qkv = self.query_key_value(x).view(B, T, self.heads, 3 * self.head_width).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        q, k = self.rotate(q), self.rotate(k)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.head_width**-0.5
        weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(x.dtype).min), dim=-1)
        return self.dense(torch.einsum("bhqk,bhkd->bqhd", weights, v).reshape(B, T, E))


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, inner, eps = config["hidden_size"], config["intermediate_size"], config.get("layer_norm_eps", 1e-5)
        self.parallel = config.get("use_parallel_residual", True)
        self.approximate = "tanh" if config.get("hidden_act", "gelu") == "gelu_new" else "none"
        self.input_layernorm = nn.LayerNorm(width, eps=eps)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=eps)
        self.attention = Attention(config)
        dense_h_to_4h, dense_4h_to_h = nn.Linear(width, inner), nn.Linear(inner, width)
        self.mlp = nn.ModuleDict({"dense_h_to_4h": dense_h_to_4h, "dense_4h_to_h": dense_4h_to_h})

    def feed_forward(self, x: torch.Tensor) -> Any:
        hidden = self.mlp["dense_h_to_4h"](x)
        return self.mlp["dense_4h_to_h"](F.gelu(hidden, approximate=self.approximate))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        attended = self.attention(self.input_layernorm(x), mask)
        if self.parallel:
            return x + attended + self.feed_forward(self.post_attention_layernorm(x))
        x = x + attended
        return x + self.feed_forward(self.post_attention_layernorm(x))


class GPTNeoX(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.embed_in = nn.Embedding(config["vocab_size"], width)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config["num_hidden_layers"])])
        self.final_layer_norm = nn.LayerNorm(width, eps=config.get("layer_norm_eps", 1e-5))
        self.embed_out = nn.Linear(width, config["vocab_size"], bias=False)

    def forward(self, tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        T = tokens.shape[1]
        mask = torch.tril(torch.ones(T, T, dtype=torch.bool))
        if key_padding is not None:
            mask = mask & key_padding[:, None, None]
        x = self.embed_in(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.embed_out(self.final_layer_norm(x))


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    head = find_head(entries, "gpt_neox.embed_in.weight")
    model = GPTNeoX(config)
    model.load_state_dict(strip_prefix(entries, "gpt_neox.") | {"embed_out.weight": head})
    model.to(getattr(torch, config.get("dtype", "float32")))
    model.requires_grad_(False)
    return model.eval()
