"""GPT-NeoX in NumPy, as nested functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.selftest.ports.entries import find_head, group_layers

f32 = np.float32
erf: Any = np.frompyfunc(math.erf, 1, 1)


def build(config: dict[str, Any], state_dict: dict[str, np.ndarray]) -> Any:
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    rotary_width = int(width * config.get("rotary_pct", 0.25))
    base = config.get("rotary_emb_base", 10000)
    eps = f32(config.get("layer_norm_eps", 1e-5))
    layers = group_layers(state_dict, "gpt_neox.layers")

    def activate(x: np.ndarray) -> Any:
        if config.get("hidden_act", "gelu") == "gelu_new":
            return x / 2 * (1 + np.tanh(f32(np.sqrt(2 / np.pi)) * (x + f32(0.044715) * x * x * x)))
        return x / 2 * (1 + erf(x * f32(math.sqrt(0.5))).astype(np.float32))

    def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight + bias

    def linear(layer: dict[str, np.ndarray], name: str, x: np.ndarray) -> Any:
        y = np.einsum("bti,oi->bto", x, layer[name + ".weight"])
        return y + layer[name + ".bias"] if name + ".bias" in layer else y

    def rotate(x: np.ndarray) -> Any:
        """x: [B, heads, T, D], of which the first columns turn."""
        half = rotary_width // 2
        angle = np.outer(np.arange(x.shape[2]), float(base) ** (-np.arange(half) / half))
        z = (x[..., :half] + 1j * x[..., half:rotary_width]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag, x[..., rotary_width:]], axis=-1).astype(np.float32)

    def attend(layer: dict[str, np.ndarray], x: np.ndarray, mask: np.ndarray) -> Any:
        B, T, E = x.shape
        fused = linear(layer, "attention.query_key_value", x).reshape(B, T, heads, 3, width)
        q, k, v = fused.transpose(3, 0, 2, 1, 4)
        scores = rotate(q) @ rotate(k).swapaxes(-1, -2) * f32(width**-0.5)
        scores[~np.broadcast_to(mask, scores.shape)] = -1e20
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return linear(layer, "attention.dense", (weights @ v).transpose(0, 2, 1, 3).reshape(B, T, E))

    def feed_forward(layer: dict[str, np.ndarray], x: np.ndarray) -> Any:
        return linear(layer, "mlp.dense_4h_to_h", activate(linear(layer, "mlp.dense_h_to_4h", x)))

    def model(tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
        mask = np.tri(tokens.shape[1], dtype=bool)
        if key_padding is not None:
            mask = mask & key_padding[:, None, None, :]
        x = state_dict["gpt_neox.embed_in.weight"][tokens]
        for layer in layers:
            h = norm(x, layer["input_layernorm.weight"], layer["input_layernorm.bias"])
            attended = x + attend(layer, h, mask)
            h = x if config.get("use_parallel_residual", True) else attended
            h = norm(h, layer["post_attention_layernorm.weight"], layer["post_attention_layernorm.bias"])
            x = attended + feed_forward(layer, h)
        x = norm(x, state_dict["gpt_neox.final_layer_norm.weight"], state_dict["gpt_neox.final_layer_norm.bias"])
        return x @ find_head(state_dict, "gpt_neox.embed_in.weight").T

    return model
