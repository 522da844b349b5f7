"""ModernBERT in PyTorch, on `scaled_dot_product_attention` with boolean masks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

ACTIVATIONS: dict[str, Any] = {"gelu": F.gelu, "silu": F.silu}


def rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    T, D = x.shape[-2:]
    inv_freq = theta ** -(torch.arange(0, D, 2).double() / D)
    angles = torch.arange(T)[:, None] * inv_freq
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    w = {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()}
    E, H = config["hidden_size"], config["num_attention_heads"]
    eps = config.get("norm_eps", 1e-5)
    act = ACTIVATIONS[config.get("hidden_activation", "gelu")]
    every = config.get("global_attn_every_n_layers", 3)
    side = config.get("local_attention", 128) // 2
    global_theta, local_theta = config.get("global_rope_theta", 160000.0), config.get("local_rope_theta", 10000.0)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (E,), w[f"{name}.weight"], w.get(f"{name}.bias"), eps)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def attention(i: int, x: torch.Tensor, full: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        qkv = linear(f"layers.{i}.attn.Wqkv", x).view(B, T, 3, H, E // H)
        q, k, v = qkv.transpose(1, 3).unbind(2)
        is_global = i % every == 0
        theta = global_theta if is_global else local_theta
        q, k = rotate(q, theta), rotate(k, theta)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=full if is_global else local)
        return linear(f"layers.{i}.attn.Wo", y.transpose(1, 2).reshape(B, T, E))

    def mlp(i: int, x: torch.Tensor) -> torch.Tensor:
        inner, gate = linear(f"layers.{i}.mlp.Wi", x).chunk(2, dim=-1)
        return linear(f"layers.{i}.mlp.Wo", act(inner) * gate)

    def modernbert(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> torch.Tensor:
        T = tokens.shape[1]
        full = torch.ones(tokens.shape[0], 1, T, T, dtype=torch.bool)
        if key_padding is not None:
            full = full & key_padding[:, None, None, :]
        distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
        local = full & (distance <= side)
        x = norm("embeddings.norm", w["embeddings.tok_embeddings.weight"][tokens])
        for i in range(config["num_hidden_layers"]):
            h = x if i == 0 else norm(f"layers.{i}.attn_norm", x)
            x = x + attention(i, h, full, local)
            x = x + mlp(i, norm(f"layers.{i}.mlp_norm", x))
        return norm("final_norm", x)

    return modernbert
