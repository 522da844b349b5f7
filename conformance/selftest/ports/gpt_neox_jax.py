"""GPT-NeoX in JAX: a parallel block takes attention and feed-forward network through one output projection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.selftest.ports.entries import find_head, group_layers


def fuse(layer: dict[str, Any]) -> tuple[Any, Any]:
    """Return weight and bias of one projection of [attended, hidden]."""
    weight = np.concatenate([layer["attention.dense.weight"], layer["mlp.dense_4h_to_h.weight"]], axis=1)
    return weight.T, layer.get("attention.dense.bias", 0) + layer["mlp.dense_4h_to_h.bias"]


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = config.get("dtype", "float32")
    layers = group_layers(state_dict, "gpt_neox.layers")
    H = config["num_attention_heads"]
    D = config["hidden_size"] // H
    R = int(D * config.get("rotary_pct", 0.25))
    eps, parallel = config.get("layer_norm_eps", 1e-5), config.get("use_parallel_residual", True)
    approximate = config.get("hidden_act", "gelu") == "gelu_new"
    fused = [tuple(jnp.asarray(a, dtype) for a in fuse(layer)) for layer in layers]
    layers = [{name: jnp.asarray(array, dtype) for name, array in layer.items()} for layer in layers]
    top = {name: jnp.asarray(array, dtype) for name, array in state_dict.items() if "layers." not in name}

    def norm(p: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean, square = wide.mean(-1, keepdims=True), jnp.square(wide).mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(square - mean * mean + eps) * p[f"{name}.weight"]
        return (wide * scale + (p[f"{name}.bias"] - mean * scale)).astype(dtype)

    def rotate(x: jax.Array) -> jax.Array:
        angles = np.outer(np.arange(x.shape[1]), config.get("rotary_emb_base", 1e4) ** (-np.arange(0, R, 2) / R))
        cos, sin = (jnp.asarray(np.tile(f(angles), 2), jnp.float32)[:, None] for f in (np.cos, np.sin))
        turned = x[..., :R]
        partner = jnp.concatenate([-turned[..., R // 2 :], turned[..., : R // 2]], -1)
        return x.at[..., :R].set((turned * cos + partner * sin).astype(dtype))

    def attend(p: dict[str, Any], x: jax.Array, mask: jax.Array) -> jax.Array:
        B, T, _ = x.shape
        qkv = x @ p["attention.query_key_value.weight"].T + p.get(
            "attention.query_key_value.bias", jnp.zeros((), dtype)
        )
        q, k, v = jnp.split(qkv.reshape(B, T, H, 3 * D), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", rotate(q), rotate(k), preferred_element_type=jnp.float32) / D**0.5
        # A power of two for each key, of scores times log2(e).
        scores = jnp.where(mask, scores * np.log2(np.e).astype(np.float32), -1e30)
        powers = jnp.exp2(scores - scores.max(-1, keepdims=True))
        y = jnp.einsum("bhqk,bkhd->bqhd", powers.astype(dtype), v, preferred_element_type=jnp.float32)
        return (y / powers.sum(-1).transpose(0, 2, 1)[..., None]).astype(dtype).reshape(B, T, H * D)

    @jax.jit
    def neox(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        T = tokens.shape[1]
        mask = jnp.tri(T, dtype=bool)
        if key_padding is not None:
            mask = mask & key_padding[:, None, None, :]
        x = top["gpt_neox.embed_in.weight"][tokens]
        for p, (weight, bias) in zip(layers, fused, strict=True):
            attended = attend(p, norm(p, "input_layernorm", x), mask)
            if not parallel:
                x = x + attended @ p["attention.dense.weight"].T + p.get("attention.dense.bias", jnp.zeros((), dtype))
            h = norm(p, "post_attention_layernorm", x) @ p["mlp.dense_h_to_4h.weight"].T + p["mlp.dense_h_to_4h.bias"]
            h = jax.nn.gelu(h, approximate=approximate)
            if parallel:
                x = x + (jnp.concatenate([attended, h], axis=-1) @ weight + bias)
            else:
                x = x + (h @ p["mlp.dense_4h_to_h.weight"].T + p["mlp.dense_4h_to_h.bias"])
        x = norm(top, "gpt_neox.final_layer_norm", x)
        return x @ find_head(top, "gpt_neox.embed_in.weight").T

    return neox
