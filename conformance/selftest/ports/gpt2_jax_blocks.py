"""GPT-2 in JAX with attention over blocks of keys and a running softmax, as in FlashAttention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.entries import find_head, group_layers, strip_prefix

BLOCK = 4
"""Keys of a block: fewer than a sequence has, so that there are several."""


def attend(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array) -> jax.Array:
    """q, k, v: [B, H, T, D]; allowed: [B, 1, T, T]."""
    T = k.shape[2]
    padded = -T % BLOCK
    k, v = (jnp.pad(a, ((0, 0), (0, 0), (0, padded), (0, 0))) for a in (k, v))
    allowed = jnp.pad(allowed, ((0, 0), (0, 0), (0, 0), (0, padded)))
    largest = jnp.full((*q.shape[:-1], 1), -jnp.inf, jnp.float32)
    total, output = jnp.zeros_like(largest), jnp.zeros(q.shape, jnp.float32)

    def add_block(start: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        largest, total, output = carry
        keys, values = (jax.lax.dynamic_slice_in_dim(a, start * BLOCK, BLOCK, 2) for a in (k, v))
        seen = jax.lax.dynamic_slice_in_dim(allowed, start * BLOCK, BLOCK, 3)
        scores = jnp.einsum("bhtd,bhsd->bhts", q, keys).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(seen, scores, -jnp.inf)
        new = jnp.maximum(largest, scores.max(-1, keepdims=True))
        # A row that has seen no key yet has the largest score -inf, and -inf - -inf would be NaN.
        shift = jnp.where(new == -jnp.inf, 0, new)
        kept, powers = jnp.exp(largest - shift), jnp.exp(scores - shift)
        output = output * kept + jnp.einsum("bhts,bhsd->bhtd", powers, values.astype(jnp.float32))
        return new, total * kept + powers.sum(-1, keepdims=True), output

    blocks = (T + padded) // BLOCK
    _, total, output = jax.lax.fori_loop(0, blocks, add_block, (largest, total, output))
    return (output / jnp.where(total == 0, 1, total)).astype(q.dtype)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = config.get("dtype", "float32")
    entries = {name: jnp.asarray(array, dtype) for name, array in state_dict.items()}
    head = find_head(entries, "transformer.wte.weight")
    w = strip_prefix(entries, "transformer.")
    heads, eps = config["n_head"], config.get("layer_norm_epsilon", 1e-5)
    kind = config.get("activation_function", "gelu_new")

    def norm(p: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        mean = wide.mean(-1, keepdims=True)
        # One pass: the mean of squares less the square of the mean.
        variance = jnp.maximum((wide * wide).mean(-1, keepdims=True) - mean * mean, 0)
        return ((wide - mean) * jax.lax.rsqrt(variance + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(dtype)

    @jax.jit
    def gpt2(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        B, T = tokens.shape
        allowed = jnp.broadcast_to(jnp.tri(T, dtype=bool), (B, 1, T, T))
        if key_padding is not None:
            allowed = allowed & key_padding[:, None, None, :]
        x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
        for p in group_layers(w, "h"):
            qkv = norm(p, "ln_1", x) @ p["attn.c_attn.weight"] + p["attn.c_attn.bias"]
            q, k, v = jnp.moveaxis(qkv.reshape(B, T, 3, heads, -1), (2, 3), (0, 2))
            y = attend(q, k, v, allowed).transpose(0, 2, 1, 3).reshape(x.shape)
            x = x + (y @ p["attn.c_proj.weight"] + p["attn.c_proj.bias"])
            h = norm(p, "ln_2", x) @ p["mlp.c_fc.weight"] + p["mlp.c_fc.bias"]
            h = jax.nn.relu(h) if kind == "relu" else jax.nn.gelu(h, approximate=kind == "gelu_new")
            x = x + (h @ p["mlp.c_proj.weight"] + p["mlp.c_proj.bias"])
        return norm(w, "ln_f", x) @ head.T

    return gpt2
