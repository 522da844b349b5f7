"""Llama in NumPy, one class, weights turned once when the model is made, one head of keys after another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.ports.entries import find_head, group_layers
from conformance.selftest.ports.frequencies import compute_frequencies


def silu(x: np.ndarray) -> Any:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.array([math.erf(value / math.sqrt(2)) for value in x.ravel()], x.dtype).reshape(x.shape))


class Llama:
    def __init__(self, config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> None:
        self.n_heads = config["num_attention_heads"]
        self.n_kv_heads = config.get("num_key_value_heads", self.n_heads)
        self.head_dim = config.get("head_dim", config["hidden_size"] // self.n_heads)
        self.eps = np.float32(config.get("rms_norm_eps", 1e-6))
        self.act = {"silu": silu, "gelu": gelu}[config.get("hidden_act", "silu")]
        self.freqs, self.mscale = compute_frequencies(config, self.head_dim)
        self.embedding = state_dict["model.embed_tokens.weight"]
        self.output = find_head(state_dict, "model.embed_tokens.weight").T
        self.norm_weight = state_dict["model.norm.weight"]
        self.layers = group_layers(state_dict, "model.layers")
        for layer in self.layers:
            for name in [name for name in layer if name.endswith("_proj.weight")]:
                layer[name] = np.ascontiguousarray(layer[name].T)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray) -> Any:
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x / rms * weight

    def project(self, layer: dict[str, np.ndarray], name: str, x: np.ndarray) -> Any:
        return x @ layer[name + ".weight"] + layer.get(name + ".bias", np.float32(0))

    def rope(self, x: np.ndarray) -> Any:
        """x: [B, T, heads, D]."""
        angle = np.arange(x.shape[1])[:, None] * self.freqs
        cos = (np.cos(angle) * self.mscale).astype(np.float32)[:, None]
        sin = (np.sin(angle) * self.mscale).astype(np.float32)[:, None]
        half = self.head_dim // 2
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, layer: dict[str, np.ndarray], x: np.ndarray, allowed: np.ndarray) -> Any:
        B, T, _ = x.shape
        q = self.project(layer, "self_attn.q_proj", x).reshape(B, T, self.n_heads, self.head_dim)
        k = self.project(layer, "self_attn.k_proj", x).reshape(B, T, self.n_kv_heads, self.head_dim)
        v = self.project(layer, "self_attn.v_proj", x).reshape(B, T, self.n_kv_heads, self.head_dim)
        q, k = self.rope(q), self.rope(k)
        group = self.n_heads // self.n_kv_heads
        out = np.empty_like(q)
        for h in range(self.n_heads):
            key, value = k[:, :, h // group], v[:, :, h // group]
            score = q[:, :, h] @ key.transpose(0, 2, 1) / np.float32(np.sqrt(self.head_dim))
            score = np.where(allowed, score, np.float32(-1e30))
            p = np.exp(score - score.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[:, :, h] = p @ value
        return self.project(layer, "self_attn.o_proj", out.reshape(B, T, -1))

    def mlp(self, layer: dict[str, np.ndarray], x: np.ndarray) -> Any:
        gate = self.project(layer, "mlp.gate_proj", x)
        up = self.project(layer, "mlp.up_proj", x)
        return self.project(layer, "mlp.down_proj", self.act(gate) * up)

    def __call__(self, tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
        T = tokens.shape[1]
        allowed = np.tri(T, dtype=bool)[None]
        if key_padding is not None:
            allowed = allowed & key_padding[:, None, :]
        x = self.embedding[tokens]
        for layer in self.layers:
            x = x + self.attention(layer, self.rms_norm(x, layer["input_layernorm.weight"]), allowed)
            x = x + self.mlp(layer, self.rms_norm(x, layer["post_attention_layernorm.weight"]))
        return self.rms_norm(x, self.norm_weight) @ self.output


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    return Llama(config, state_dict)
