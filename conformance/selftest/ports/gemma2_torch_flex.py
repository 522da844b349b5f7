"""Gemma 2 on `flex_attention`: soft cap and windows are functions of scores and positions; it is not compiled."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from conformance.selftest.ports.entries import find_head, group_layers


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = getattr(torch, config.get("dtype", "float32"))
    w = {name: torch.from_numpy(array).to(dtype) for name, array in state_dict.items()}
    layers = group_layers(w, "model.layers")
    H, G, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, cap = config.get("rms_norm_eps", 1e-6), config.get("attn_logit_softcapping", 50.0)
    last_cap, window = config.get("final_logit_softcapping", 30.0), config.get("sliding_window", 4096)
    kind = "none" if config.get("hidden_activation") == "gelu" else "tanh"
    base = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
    inv_freq = base ** (-torch.arange(0, D, 2).double() / D)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), weight.shape, 1 + weight.float(), eps).to(dtype)

    def cap_score(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score if cap is None else cap * torch.tanh(score / cap)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] * inv_freq
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        a, b = x.unflatten(-1, (2, -1)).unbind(-2)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-2).flatten(-2)

    def heads(layer: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, layer[f"self_attn.{name}.weight"], layer.get(f"self_attn.{name}.bias"))
        return y.unflatten(-1, (-1, D)).transpose(1, 2)

    @torch.no_grad()
    def gemma2(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> torch.Tensor:
        B, T = tokens.shape
        keep = torch.ones(B, T, dtype=torch.bool) if key_padding is None else key_padding

        def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (i >= j) & keep[b, j]

        def local(b: Any, h: Any, i: Any, j: Any) -> Any:
            return causal(b, h, i, j) & (i - j < window)

        masks = [create_block_mask(f, B, None, T, T, device="cpu") for f in (local, causal)]
        x = w["model.embed_tokens.weight"][tokens]
        x = x * x.new_tensor(x.shape[-1]).sqrt()
        for i, layer in enumerate(layers):
            h = norm(x, layer["input_layernorm.weight"])
            q, k, v = rotate(heads(layer, "q_proj", h)), rotate(heads(layer, "k_proj", h)), heads(layer, "v_proj", h)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says that it is slow without being compiled
                y = flex_attention(
                    q, k, v, cap_score, masks[i % 2], config.get("query_pre_attn_scalar", 256) ** -0.5, H != G
                )
            y = F.linear(
                y.transpose(1, 2).flatten(2), layer["self_attn.o_proj.weight"], layer.get("self_attn.o_proj.bias")
            )
            x = x + norm(y, layer["post_attention_layernorm.weight"])
            h = norm(x, layer["pre_feedforward_layernorm.weight"])
            y = F.gelu(h @ layer["mlp.gate_proj.weight"].T, approximate=kind) * (h @ layer["mlp.up_proj.weight"].T)
            x = x + norm(y @ layer["mlp.down_proj.weight"].T, layer["post_feedforward_layernorm.weight"])
        logits = norm(x, w["model.norm.weight"]) @ find_head(w, "model.embed_tokens.weight").T
        return logits if last_cap is None else last_cap * torch.tanh(logits / last_cap)

    return gemma2
