"""ViT in JAX: patches cut by reshapes, blocks under `jax.lax.scan` with their entries stacked."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.entries import group_layers, strip_prefix


def normalize(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    y = jax.nn.standardize(x.astype(jnp.float32), axis=-1, epsilon=eps)
    return (y * weight + bias).astype(x.dtype)


def cut(images: jax.Array, size: int) -> jax.Array:
    B, C, height, width = images.shape
    patches = images.reshape(B, C, height // size, size, width // size, size)
    patches = patches.transpose(0, 2, 4, 1, 3, 5)
    return patches.reshape(B, (height // size) * (width // size), C * size * size)


def block(config: dict[str, Any], x: jax.Array, p: dict[str, Any]) -> jax.Array:
    H, eps = config["num_attention_heads"], config.get("layer_norm_eps", 1e-12)
    B, N, E = x.shape

    def dense(name: str, y: jax.Array) -> jax.Array:
        y = y @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    h = normalize(x, p["layernorm_before.weight"], p["layernorm_before.bias"], eps)
    q, k, v = (dense(f"attention.attention.{name}", h).reshape(B, N, H, E // H) for name in ("query", "key", "value"))
    attended = jax.nn.dot_product_attention(q, k, v).reshape(B, N, E)
    x = x + dense("attention.output.dense", attended)
    h = normalize(x, p["layernorm_after.weight"], p["layernorm_after.bias"], eps)
    h = jax.nn.gelu(dense("intermediate.dense", h), approximate=config.get("hidden_act", "gelu") == "gelu_new")
    return x + dense("output.dense", h)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype, eps = config.get("dtype", "float32"), config.get("layer_norm_eps", 1e-12)
    p = strip_prefix({name: jnp.asarray(array, dtype) for name, array in state_dict.items()}, "vit.")
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *group_layers(p, "encoder.layer"))
    kernel = p["embeddings.patch_embeddings.projection.weight"].reshape(config["hidden_size"], -1)

    @jax.jit
    def vit(images: jax.Array) -> jax.Array:
        x = cut(images.astype(dtype), config["patch_size"]) @ kernel.T
        x = x + p["embeddings.patch_embeddings.projection.bias"]
        first = jnp.broadcast_to(p["embeddings.cls_token"], (x.shape[0], 1, x.shape[2]))
        x = jnp.concatenate([first, x], axis=1)
        x = x + p["embeddings.position_embeddings"]
        apply = partial(block, config)
        x, _ = jax.lax.scan(lambda x, layer: (apply(x, layer), None), x, stacked)
        return normalize(x, p["layernorm.weight"], p["layernorm.bias"], eps)

    return vit
