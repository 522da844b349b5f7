"""ModernBERT in NumPy without padding, as its fast kernels compute it: the real tokens of each row alone.

What stands at padding is 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.ports.entries import group_layers


def gelu(x: np.ndarray) -> Any:
    return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(x.dtype)


def silu(x: np.ndarray) -> Any:
    return x / (1 + np.exp(-x))


class ModernBert:
    def __init__(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.layers = group_layers(weights, "layers")
        self.heads = config["num_attention_heads"]
        self.eps = np.float32(config.get("norm_eps", 1e-5))
        self.activation = {"gelu": gelu, "silu": silu}[config.get("hidden_activation", "gelu")]
        self.every = config.get("global_attn_every_n_layers", 3)
        self.side = config.get("local_attention", 128) // 2
        self.theta = {True: config.get("global_rope_theta", 160000.0), False: config.get("local_rope_theta", 10000.0)}

    def norm(self, entries: dict[str, np.ndarray], name: str, x: np.ndarray) -> Any:
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.eps)
        return y * entries[f"{name}.weight"] + entries.get(f"{name}.bias", np.float32(0))

    def linear(self, layer: dict[str, np.ndarray], name: str, x: np.ndarray) -> Any:
        return x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", np.float32(0))

    def rotate(self, x: np.ndarray, positions: np.ndarray, theta: float) -> Any:
        half = x.shape[-1] // 2
        angle = positions[:, None] / theta ** (np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        return np.concatenate(
            [x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1
        )

    def attention(self, layer: dict[str, np.ndarray], x: np.ndarray, positions: np.ndarray, is_global: bool) -> Any:
        N, E = x.shape
        fused = self.linear(layer, "attn.Wqkv", x).reshape(N, 3, self.heads, E // self.heads)
        q, k, v = fused.transpose(1, 2, 0, 3)
        q, k = (self.rotate(a, positions, self.theta[is_global]) for a in (q, k))
        scores = q @ k.transpose(0, 2, 1) * np.float32((E // self.heads) ** -0.5)
        if not is_global:
            far = np.abs(positions[:, None] - positions) > self.side
            scores = np.where(far, -np.inf, scores)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = (p @ v) / p.sum(-1, keepdims=True)
        return self.linear(layer, "attn.Wo", y.transpose(1, 0, 2).reshape(N, E))

    def feed_forward(self, layer: dict[str, np.ndarray], x: np.ndarray) -> Any:
        first, second = np.split(self.linear(layer, "mlp.Wi", x), 2, axis=-1)
        return self.linear(layer, "mlp.Wo", self.activation(first) * second)

    def run(self, tokens: np.ndarray, positions: np.ndarray) -> Any:
        x = self.norm(self.weights, "embeddings.norm", self.weights["embeddings.tok_embeddings.weight"][tokens])
        for i, layer in enumerate(self.layers):
            normed = self.norm(layer, "attn_norm", x) if i > 0 else x
            x = x + self.attention(layer, normed, positions, i % self.every == 0)
            x = x + self.feed_forward(layer, self.norm(layer, "mlp_norm", x))
        return self.norm(self.weights, "final_norm", x)

    def __call__(self, tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
        keep = np.ones(tokens.shape, bool) if key_padding is None else key_padding
        width = self.weights["embeddings.norm.weight"].shape[0]
        output = np.zeros((*tokens.shape, width), np.float32)
        for row, (ids, real) in enumerate(zip(tokens, keep, strict=True)):
            if real.any():
                output[row, real] = self.run(ids[real], np.flatnonzero(real))
        return output


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    return ModernBert(config, state_dict)
