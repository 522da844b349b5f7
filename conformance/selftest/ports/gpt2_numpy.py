"""GPT-2 in NumPy after picoGPT: one sequence at a time."""

from __future__ import annotations

from math import erf, sqrt
from typing import Any

import numpy as np

from conformance.selftest.ports.entries import find_head


def gelu_new(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x: np.ndarray) -> Any:
    return 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)).astype(x.dtype))


def relu(x: np.ndarray) -> Any:
    return np.maximum(x, 0)


def softmax(x: np.ndarray) -> Any:
    exp_x = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exp_x / np.sum(exp_x, axis=-1, keepdims=True)


def layer_norm(x: np.ndarray, g: np.ndarray, b: np.ndarray, eps: np.float32) -> Any:
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.var(x, axis=-1, keepdims=True)
    return g * (x - mean) / np.sqrt(variance + eps) + b


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> Any:
    return x @ w + b


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> Any:
    return softmax(q @ k.T / np.float32(sqrt(q.shape[-1])) + mask) @ v


def mha(x: np.ndarray, w: dict[str, np.ndarray], name: str, n_head: int, mask: np.ndarray) -> Any:
    x = linear(x, w[f"{name}.c_attn.weight"], w[f"{name}.c_attn.bias"])
    qkv_heads = [np.split(part, n_head, axis=-1) for part in np.split(x, 3, axis=-1)]
    out_heads = [attention(q, k, v, mask) for q, k, v in zip(*qkv_heads, strict=True)]
    return linear(np.hstack(out_heads), w[f"{name}.c_proj.weight"], w[f"{name}.c_proj.bias"])


def gpt2(tokens: np.ndarray, keep: np.ndarray, w: dict[str, np.ndarray], config: dict[str, Any]) -> Any:
    act = {"gelu_new": gelu_new, "gelu": gelu, "relu": relu}[config.get("activation_function", "gelu_new")]
    eps = np.float32(config.get("layer_norm_epsilon", 1e-5))
    mask = np.tril(np.ones((len(tokens), len(tokens)), bool)) & keep
    mask = np.where(mask, 0, -1e10).astype(np.float32)

    def ln(name: str, x: np.ndarray) -> Any:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][range(len(tokens))]
    for i in range(config["n_layer"]):
        block = f"transformer.h.{i}"
        x = x + mha(ln(f"{block}.ln_1", x), w, f"{block}.attn", config["n_head"], mask)
        hidden = act(linear(ln(f"{block}.ln_2", x), w[f"{block}.mlp.c_fc.weight"], w[f"{block}.mlp.c_fc.bias"]))
        x = x + linear(hidden, w[f"{block}.mlp.c_proj.weight"], w[f"{block}.mlp.c_proj.bias"])
    x = ln("transformer.ln_f", x)
    return x @ find_head(w, "transformer.wte.weight").T


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    def call(tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
        keep = np.ones(tokens.shape, bool) if key_padding is None else key_padding
        return np.stack([gpt2(row, real, state_dict, config) for row, real in zip(tokens, keep, strict=True)])

    return call
