"""Llama in JAX as it is trained: stacked layers under `jax.lax.scan` with rematerialisation, one gate-and-up matmul."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.entries import find_head, group_layers
from conformance.selftest.ports.frequencies import compute_frequencies


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = jnp.dtype(config.get("dtype", "float32"))
    params = {name: jnp.asarray(array, dtype) for name, array in state_dict.items()}
    H = config["num_attention_heads"]
    G = config.get("num_key_value_heads", H)
    D = config.get("head_dim", config["hidden_size"] // H)
    eps, act = config.get("rms_norm_eps", 1e-6), getattr(jax.nn, config.get("hidden_act", "silu"))
    freqs, factor = compute_frequencies(config, D)
    layers = group_layers(params, "model.layers")
    for layer in layers:
        for part in ("weight", "bias"):
            both = [layer.pop(f"mlp.{name}.{part}", None) for name in ("gate_proj", "up_proj")]
            if both[0] is not None:
                layer[f"mlp.in.{part}"] = jnp.concatenate(both)
    stacked = {name: jnp.stack([layer[name] for layer in layers]) for name in layers[0]}

    def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        # The norm of the row times 1 / sqrt(n), in place of a mean of squares.
        return (wide / jnp.hypot(jnp.linalg.norm(wide, axis=-1, keepdims=True) * x.shape[-1] ** -0.5, eps**0.5)).astype(
            dtype
        ) * weight

    def dense(p: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
        y = jax.lax.dot_general(x, p[f"{name}.weight"], (((2,), (1,)), ((), ())))
        return y + p[f"{name}.bias"] if f"{name}.bias" in p else y

    def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        halves = x.reshape(*x.shape[:-1], 2, D // 2)
        turned = halves * cos[:, None, None] + halves[..., ::-1, :] * sin[:, None, None] * jnp.array([[-1.0], [1.0]])
        return turned.reshape(x.shape).astype(dtype)

    @jax.jit
    def forward(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        B, T = tokens.shape
        angles = jnp.arange(T, dtype=jnp.float32)[:, None] * jnp.asarray(freqs, jnp.float32)
        cos, sin = factor * jnp.cos(angles), factor * jnp.sin(angles)
        mask = None if key_padding is None else key_padding[:, None, None, :]

        @jax.checkpoint
        def layer(x: jax.Array, p: dict[str, Any]) -> tuple[jax.Array, None]:
            h = norm(x, p["input_layernorm.weight"])
            q = rotate(dense(p, "self_attn.q_proj", h).reshape(B, T, H, D), cos, sin)
            k = rotate(dense(p, "self_attn.k_proj", h).reshape(B, T, G, D), cos, sin)
            v = dense(p, "self_attn.v_proj", h).reshape(B, T, G, D)
            y = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)
            x = x + dense(p, "self_attn.o_proj", y.reshape(B, T, H * D))
            gate, up = jnp.split(dense(p, "mlp.in", norm(x, p["post_attention_layernorm.weight"])), 2, axis=-1)
            gate = jax.nn.gelu(gate, approximate=False) if act is jax.nn.gelu else act(gate)
            return x + dense(p, "mlp.down_proj", gate * up), None

        x, _ = jax.lax.scan(layer, params["model.embed_tokens.weight"][tokens], stacked)
        return norm(x, params["model.norm.weight"]) @ find_head(params, "model.embed_tokens.weight").T

    return forward
