"""Llama in PyTorch after Meta's own code: rotations are complex products of neighbouring columns.

Hugging Face's checkpoints have the columns of each head in another order, which is undone when they are read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from conformance.selftest.ports.entries import find_head, group_layers
from conformance.selftest.ports.frequencies import compute_frequencies


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring rows p and p + D / 2 of each head side by side."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    entries = {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()}
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads", n_heads)
    D = config.get("head_dim", config["hidden_size"] // n_heads)
    eps = config.get("rms_norm_eps", 1e-6)
    freqs, factor = compute_frequencies(config, D)
    layers = group_layers(entries, "model.layers")
    for layer in layers:
        for name, heads in (("q_proj", n_heads), ("k_proj", n_kv_heads)):
            for part in ("weight", "bias"):
                if f"self_attn.{name}.{part}" in layer:
                    layer[f"self_attn.{name}.{part}"] = interleave(layer[f"self_attn.{name}.{part}"], heads)
    act = F.gelu if config.get("hidden_act") == "gelu" else F.silu

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)

    def linear(layer: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer[f"{name}.weight"], layer.get(f"{name}.bias"))

    @torch.inference_mode()
    def forward(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> torch.Tensor:
        B, T = tokens.shape
        angles = torch.outer(torch.arange(T).double(), torch.from_numpy(freqs))
        turns = torch.polar(torch.full_like(angles, factor), angles).to(torch.complex64)[:, None]
        mask = torch.ones(T, T).tril().bool()
        if key_padding is not None:
            mask = mask & key_padding[:, None, None, :]
        h = F.embedding(tokens, entries["model.embed_tokens.weight"])
        for layer in layers:
            x = norm(h, layer["input_layernorm.weight"])
            q = rotate(linear(layer, "self_attn.q_proj", x).view(B, T, n_heads, D), turns).transpose(1, 2)
            k = rotate(linear(layer, "self_attn.k_proj", x).view(B, T, n_kv_heads, D), turns).transpose(1, 2)
            v = linear(layer, "self_attn.v_proj", x).view(B, T, n_kv_heads, D).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            h = h + linear(layer, "self_attn.o_proj", y.transpose(1, 2).reshape(B, T, -1))
            x = norm(h, layer["post_attention_layernorm.weight"])
            x = act(linear(layer, "mlp.gate_proj", x)).mul_(linear(layer, "mlp.up_proj", x))
            h = h + linear(layer, "mlp.down_proj", x)
        return norm(h, entries["model.norm.weight"]) @ find_head(entries, "model.embed_tokens.weight").T

    return forward
