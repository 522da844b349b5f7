"""Llama in NumPy for inference: weights of norms and the scale of scores are folded into the projections after them."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.ports.entries import find_head, group_layers
from conformance.selftest.ports.frequencies import compute_frequencies
from conformance.selftest.ports.llama_numpy import gelu, silu


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    H = config["num_attention_heads"]
    G = config.get("num_key_value_heads", H)
    D = config.get("head_dim", config["hidden_size"] // H)
    eps = np.float32(config.get("rms_norm_eps", 1e-6))
    act = gelu if config.get("hidden_act") == "gelu" else silu
    freqs, factor = compute_frequencies(config, D)
    layers = []
    for layer in group_layers(state_dict, "model.layers"):
        before, after = layer["input_layernorm.weight"], layer["post_attention_layernorm.weight"]
        qkv = np.concatenate([layer[f"self_attn.{name}_proj.weight"] for name in "qkv"]) * before
        zeros = np.zeros(1, np.float32)
        biases = [
            np.broadcast_to(layer.get(f"self_attn.{name}_proj.bias", zeros), heads * D)
            for name, heads in (("q", H), ("k", G), ("v", G))
        ]
        bias = np.concatenate(biases)
        scale = np.where(np.arange(len(qkv)) < H * D, D**-0.5, 1).astype(np.float32)
        layers.append({
            "qkv": (qkv * scale[:, None]).T, "qkv bias": bias * scale,
            "o": layer["self_attn.o_proj.weight"].T, "o bias": layer.get("self_attn.o_proj.bias", zeros),
            "gate": (layer["mlp.gate_proj.weight"] * after).T, "gate bias": layer.get("mlp.gate_proj.bias", zeros),
            "up": (layer["mlp.up_proj.weight"] * after).T, "up bias": layer.get("mlp.up_proj.bias", zeros),
            "down": layer["mlp.down_proj.weight"].T, "down bias": layer.get("mlp.down_proj.bias", zeros),
        })  # fmt: skip
    head = (find_head(state_dict, "model.embed_tokens.weight") * state_dict["model.norm.weight"]).T

    def normalize(x: np.ndarray) -> Any:
        return x * (1 / np.sqrt(np.einsum("bte,bte->bt", x, x)[..., None] / np.float32(x.shape[-1]) + eps))

    def rotate(x: np.ndarray, table: np.ndarray) -> Any:
        pairs = np.stack(np.split(x, 2, axis=-1), axis=-2)
        return np.einsum("bthcp,tdcp->bthdp", pairs, table).reshape(x.shape)

    def forward(tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
        B, T = tokens.shape
        angles = np.outer(np.arange(T), freqs)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        table = np.array([[cos, -sin], [sin, cos]], np.float32).transpose(2, 0, 1, 3)
        forbidden = np.triu(np.ones((T, T), bool), 1)[None]
        if key_padding is not None:
            forbidden = forbidden | ~key_padding[:, None, :]
        x = np.take(state_dict["model.embed_tokens.weight"], tokens, axis=0)
        for p in layers:
            qkv = (normalize(x) @ p["qkv"] + p["qkv bias"]).reshape(B, T, H + 2 * G, D)
            q, k, v = qkv[:, :, :H], qkv[:, :, H : H + G], qkv[:, :, H + G :]
            q, k = rotate(q, table).reshape(B, T, G, H // G, D), rotate(k, table)
            scores = np.einsum("btgrd,bsgd->bgrts", q, k)
            scores[np.broadcast_to(forbidden[:, None, None], scores.shape)] = np.finfo(np.float32).min
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            y = np.einsum("bgrts,bsgd->btgrd", weights / weights.sum(-1, keepdims=True), v)
            x = x + (y.reshape(B, T, H * D) @ p["o"] + p["o bias"])
            h = normalize(x)
            x = x + ((act(h @ p["gate"] + p["gate bias"]) * (h @ p["up"] + p["up bias"])) @ p["down"] + p["down bias"])
        return normalize(x) @ head

    return forward
