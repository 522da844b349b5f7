"""Gemma 2 in JAX: a jitted function in which the entries are constants, einsum throughout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.entries import find_head, group_layers


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    normed = wide / jnp.sqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + eps)
    return (normed * (1 + scale.astype(jnp.float32))).astype(x.dtype)


def rotate(x: jax.Array, base: float) -> jax.Array:
    """x: [B, T, heads, D]."""
    T, D = x.shape[1], x.shape[-1]
    timescale = base ** (2 * jnp.arange(D // 2) / D)
    radians = (jnp.arange(T)[:, None] / timescale)[:, None, :]
    sin, cos = jnp.sin(radians), jnp.cos(radians)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    return x if cap is None else jnp.tanh(x / cap) * cap


def attention(config: dict[str, Any], layer: dict[str, Any], x: jax.Array, mask: jax.Array) -> jax.Array:
    B, T, _ = x.shape
    H, G, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    base = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)

    def project(name: str, heads: int) -> jax.Array:
        y = x @ layer[f"self_attn.{name}.weight"].T
        if f"self_attn.{name}.bias" in layer:
            y = y + layer[f"self_attn.{name}.bias"]
        return y.reshape(B, T, heads, D)

    q = rotate(project("q_proj", H), base) * config.get("query_pre_attn_scalar", 256) ** -0.5
    k, v = rotate(project("k_proj", G), base), project("v_proj", G)
    q = q.reshape(B, T, G, H // G, D)
    logits = jnp.einsum("BTGND,BSGD->BTGNS", q, k)
    logits = soft_cap(logits, config.get("attn_logit_softcapping", 50.0))
    logits = jnp.where(mask[:, :, None, None, :], logits, -2.3819763e38)
    probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1).astype(x.dtype)
    encoded = jnp.einsum("BTGNS,BSGD->BTGND", probs, v).reshape(B, T, H * D)
    out = encoded @ layer["self_attn.o_proj.weight"].T
    return out + layer["self_attn.o_proj.bias"] if "self_attn.o_proj.bias" in layer else out


def feed_forward(config: dict[str, Any], layer: dict[str, Any], x: jax.Array) -> jax.Array:
    approximate = config.get("hidden_activation", "gelu_pytorch_tanh") != "gelu"
    gate = jax.nn.gelu(x @ layer["mlp.gate_proj.weight"].T, approximate=approximate)
    return (gate * (x @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = config.get("dtype", "float32")
    params = {name: jnp.asarray(array, dtype) for name, array in state_dict.items()}
    layers = group_layers(params, "model.layers")
    embedder = params["model.embed_tokens.weight"]
    head = find_head(params, "model.embed_tokens.weight")
    eps = config.get("rms_norm_eps", 1e-6)
    window = config.get("sliding_window", 4096)

    @jax.jit
    def gemma2(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        T = tokens.shape[1]
        ago = jnp.arange(T)[:, None] - jnp.arange(T)
        causal = (ago >= 0)[None]
        if key_padding is not None:
            causal = causal & key_padding[:, None, :]
        local = causal & (ago < window)
        x = embedder[tokens] * jnp.sqrt(embedder.shape[1]).astype(dtype)
        for i, layer in enumerate(layers):
            mask = local if i % 2 == 0 else causal
            normed = rms_norm(x, layer["input_layernorm.weight"], eps)
            out = attention(config, layer, normed, mask)
            x = x + rms_norm(out, layer["post_attention_layernorm.weight"], eps)
            normed = rms_norm(x, layer["pre_feedforward_layernorm.weight"], eps)
            out = feed_forward(config, layer, normed)
            x = x + rms_norm(out, layer["post_feedforward_layernorm.weight"], eps)
        x = rms_norm(x, params["model.norm.weight"], eps)
        return soft_cap(x @ head.T, config.get("final_logit_softcapping", 30.0))

    return gemma2
