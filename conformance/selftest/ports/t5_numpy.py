"""T5 in NumPy, in float64 inside and float32 outside, with the bias of each pair looked up in a loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.ports.entries import find_head

ACTIVATIONS = {
    "relu": lambda x: np.where(x > 0, x, 0),
    "gated-gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gated-silu": lambda x: x / (1 + np.exp(-x)),
}


def find_bucket(query: int, key: int, count: int, furthest: int, both_ways: bool) -> int:
    first, distance = 0, query - key
    if both_ways:
        count //= 2
        first, distance = (count if key > query else 0), abs(distance)
    distance = max(distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(furthest / exact)
    return first + min(exact + int(share * (count - exact) + 1e-9), count - 1)


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    w = {name: array.astype(np.float64) for name, array in state_dict.items()}
    heads, eps = config["num_heads"], config.get("layer_norm_epsilon", 1e-6)
    furthest, kind = config.get("relative_attention_max_distance", 128), config.get("feed_forward_proj", "relu")

    def norm(name: str, x: np.ndarray) -> Any:
        return w[name + ".weight"] * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)

    def attend(name: str, x: np.ndarray, memory: np.ndarray, bias: Any, allowed: np.ndarray) -> Any:
        queries, keys, values = (
            np.reshape(y @ w[f"{name}.{part}.weight"].T, (*y.shape[:2], heads, -1)).swapaxes(1, 2)
            for part, y in (("q", x), ("k", memory), ("v", memory))
        )
        scores = np.where(allowed, queries @ keys.swapaxes(-1, -2) + bias, -1e300)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = weights @ values / weights.sum(axis=-1, keepdims=True)
        return y.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ w[f"{name}.o.weight"].T

    def transform(name: str, x: np.ndarray) -> Any:
        if kind == "relu":
            return ACTIVATIONS[kind](x @ w[f"{name}.wi.weight"].T) @ w[f"{name}.wo.weight"].T
        gate = ACTIVATIONS[kind](x @ w[f"{name}.wi_0.weight"].T)
        return (gate * (x @ w[f"{name}.wi_1.weight"].T)) @ w[f"{name}.wo.weight"].T

    def run(stack: str, tokens: np.ndarray, keep: Any, memory: Any = None, memory_keep: Any = None) -> Any:
        length, decodes = tokens.shape[1], stack == "decoder"
        table = w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = np.zeros((heads, length, length))
        for i in range(length):
            for j in range(length):
                bias[:, i, j] = table[find_bucket(i, j, len(table), furthest, not decodes)]
        allowed = np.ones((length, length), bool)
        allowed = np.tril(allowed) if decodes else allowed
        allowed = allowed if keep is None else allowed & keep[:, None, None, :]
        seen = np.array(True) if memory_keep is None else memory_keep[:, None, None, :]
        x = w["shared.weight"][tokens]
        layers = sum(name.startswith(f"{stack}.block.") and name.endswith("SelfAttention.q.weight") for name in w)
        for i in range(layers):
            block = f"{stack}.block.{i}.layer"
            y = norm(f"{block}.0.layer_norm", x)
            x = x + attend(f"{block}.0.SelfAttention", y, y, bias, allowed)
            if decodes:
                y = norm(f"{block}.1.layer_norm", x)
                x = x + attend(f"{block}.1.EncDecAttention", y, memory, 0.0, seen)
            x = x + transform(f"{block}.{1 + decodes}.DenseReluDense", norm(f"{block}.{1 + decodes}.layer_norm", x))
        return norm(f"{stack}.final_layer_norm", x)

    def t5(
        source: np.ndarray, target: np.ndarray, source_key_padding: Any = None, target_key_padding: Any = None
    ) -> Any:
        x = run("decoder", target, target_key_padding, run("encoder", source, source_key_padding), source_key_padding)
        scale = config["d_model"] ** -0.5 if config.get("tie_word_embeddings", True) else 1
        return (x * scale @ find_head(w, "shared.weight").T).astype(np.float32)

    return t5
