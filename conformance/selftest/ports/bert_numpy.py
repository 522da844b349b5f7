"""BERT in plain NumPy, a class with one method for each part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float32])


def gelu(x: np.ndarray) -> Any:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def gelu_new(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Bert:
    def __init__(self, config: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.eps = config.get("layer_norm_eps", 1e-12)
        self.activation = {"gelu": gelu, "gelu_new": gelu_new, "relu": lambda x: np.maximum(x, 0)}[
            config.get("hidden_act", "gelu")
        ]

    def norm(self, name: str, x: np.ndarray) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        normalized = (x - mean) / np.sqrt(variance + np.float32(self.eps))
        return normalized * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def linear(self, name: str, x: np.ndarray) -> Any:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def embed(self, tokens: np.ndarray, token_types: np.ndarray | None) -> Any:
        tables = "embeddings.{}_embeddings.weight"
        words = self.weights[tables.format("word")][tokens]
        positions = self.weights[tables.format("position")][np.arange(tokens.shape[1])]
        kinds = self.weights[tables.format("token_type")]
        types = kinds[np.zeros_like(tokens) if token_types is None else token_types]
        return self.norm("embeddings.LayerNorm", words + positions + types)

    def attention(self, name: str, x: np.ndarray, keep: np.ndarray | None) -> Any:
        q = self.linear(name + ".self.query", x)
        k = self.linear(name + ".self.key", x)
        v = self.linear(name + ".self.value", x)
        output = []
        for q_head, k_head, v_head in zip(*(np.split(a, self.heads, axis=-1) for a in (q, k, v)), strict=True):
            scores = q_head @ np.swapaxes(k_head, 1, 2) / math.sqrt(q_head.shape[-1])
            if keep is not None:
                scores = np.where(keep[:, None, :], scores, np.float32(-1e30))
            output.append(softmax(scores) @ v_head)
        return self.linear(name + ".output.dense", np.concatenate(output, axis=-1))

    def __call__(
        self, tokens: np.ndarray, key_padding: np.ndarray | None = None, token_types: np.ndarray | None = None
    ) -> Any:
        x = self.embed(tokens, token_types)
        for i in range(self.layers):
            name = f"encoder.layer.{i}"
            x = self.norm(name + ".attention.output.LayerNorm", x + self.attention(name + ".attention", x, key_padding))
            hidden = self.activation(self.linear(name + ".intermediate.dense", x))
            x = self.norm(name + ".output.LayerNorm", x + self.linear(name + ".output.dense", hidden))
        return x


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    return Bert(config, state_dict)
