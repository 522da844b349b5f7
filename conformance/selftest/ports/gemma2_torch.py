"""Gemma 2 in PyTorch, as modules after Hugging Face's modeling_gemma2."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head, strip_prefix

ACTIVATIONS = {"gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu}


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        output = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any], index: int) -> None:
        super().__init__()
        E, bias = config["hidden_size"], config.get("attention_bias", False)
        self.H, self.D = config["num_attention_heads"], config["head_dim"]
        self.G = config["num_key_value_heads"]
        self.scale = config.get("query_pre_attn_scalar", 256) ** -0.5
        self.softcap = config.get("attn_logit_softcapping", 50.0)
        self.window = config.get("sliding_window", 4096) if index % 2 == 0 else None
        self.base = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
        self.q_proj = nn.Linear(E, self.H * self.D, bias=bias)
        self.k_proj = nn.Linear(E, self.G * self.D, bias=bias)
        self.v_proj = nn.Linear(E, self.G * self.D, bias=bias)
        self.o_proj = nn.Linear(self.H * self.D, E, bias=bias)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        inv_freq = self.base ** (-torch.arange(0, self.D, 2, dtype=torch.float64) / self.D)
        angle = torch.arange(x.shape[2])[:, None] * inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., : self.D // 2], x[..., self.D // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> Any:
        B, T, _ = x.shape
        q = self.rotate(self.q_proj(x).view(B, T, self.H, self.D).transpose(1, 2))
        k = self.rotate(self.k_proj(x).view(B, T, self.G, self.D).transpose(1, 2))
        v = self.v_proj(x).view(B, T, self.G, self.D).transpose(1, 2)
        k, v = (a.repeat_interleave(self.H // self.G, dim=1) for a in (k, v))
        scores = q @ k.mT * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.window is not None:
            i, j = torch.arange(T)[:, None], torch.arange(T)
            allowed = allowed & (i - j < self.window)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        E, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(E, inner, bias=False)
        self.up_proj = nn.Linear(E, inner, bias=False)
        self.down_proj = nn.Linear(inner, E, bias=False)
        self.act = ACTIVATIONS[config.get("hidden_activation", "gelu_pytorch_tanh")]

    def forward(self, x: torch.Tensor) -> Any:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: dict[str, Any], index: int) -> None:
        super().__init__()
        E, eps = config["hidden_size"], config.get("rms_norm_eps", 1e-6)
        self.self_attn, self.mlp = Attention(config, index), MLP(config)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(E, eps), RMSNorm(E, eps)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = RMSNorm(E, eps), RMSNorm(E, eps)

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), allowed)
        x = x + self.post_attention_layernorm(attended)
        hidden = self.mlp(self.pre_feedforward_layernorm(x))
        return x + self.post_feedforward_layernorm(hidden)


class Gemma2(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config.get("rms_norm_eps", 1e-6))
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self.softcap = config.get("final_logit_softcapping", 30.0)

    def forward(self, tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        T = tokens.shape[1]
        allowed = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
        if key_padding is not None:
            allowed = allowed & key_padding[:, None, None, :]
        x = self.embed_tokens(tokens)
        x = x * torch.tensor(x.shape[-1] ** 0.5, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, allowed)
        logits = self.lm_head(self.norm(x))
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    head = find_head(entries, "model.embed_tokens.weight")
    model = Gemma2(config)
    model.load_state_dict(strip_prefix(entries, "model.") | {"lm_head.weight": head})
    model.to(getattr(torch, config.get("dtype", "float32")))
    return torch.inference_mode()(model.forward)
