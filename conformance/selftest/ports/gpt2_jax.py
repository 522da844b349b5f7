"""GPT-2 in JAX, functions of nested dictionaries, not jitted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.entries import find_head, group_layers, strip_prefix

ACTIVATIONS = {
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
}


def norm(x: jax.Array, g: jax.Array, b: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    normalized = (wide - wide.mean(-1, keepdims=True)) / jnp.sqrt(wide.var(-1, keepdims=True) + eps)
    return (normalized * g + b).astype(x.dtype)


def attention(layer: dict[str, Any], x: jax.Array, mask: jax.Array, heads: int) -> jax.Array:
    B, T, E = x.shape
    qkv = x @ layer["attn.c_attn.weight"] + layer["attn.c_attn.bias"]
    q, k, v = jnp.moveaxis(qkv.reshape(B, T, 3, heads, E // heads), 2, 0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(E // heads).astype(x.dtype)
    scores = jnp.where(mask, scores, -1e9 if x.dtype == jnp.float32 else -1e4)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)
    return out.reshape(B, T, E) @ layer["attn.c_proj.weight"] + layer["attn.c_proj.bias"]


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = config.get("dtype", "float32")
    entries = {name: jnp.asarray(array, dtype) for name, array in state_dict.items()}
    head = find_head(entries, "transformer.wte.weight")
    entries = strip_prefix(entries, "transformer.")
    layers = group_layers(entries, "h")
    eps, heads = config.get("layer_norm_epsilon", 1e-5), config["n_head"]
    act = ACTIVATIONS[config.get("activation_function", "gelu_new")]

    def mlp(layer: dict[str, Any], x: jax.Array) -> jax.Array:
        h = act(x @ layer["mlp.c_fc.weight"] + layer["mlp.c_fc.bias"])
        return h @ layer["mlp.c_proj.weight"] + layer["mlp.c_proj.bias"]

    def gpt2(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        T = tokens.shape[1]
        mask = jnp.tril(jnp.ones((T, T), bool))[None, None]
        if key_padding is not None:
            mask = mask & key_padding[:, None, None, :]
        x = entries["wte.weight"][tokens] + entries["wpe.weight"][jnp.arange(T)]
        for layer in layers:
            x = x + attention(layer, norm(x, layer["ln_1.weight"], layer["ln_1.bias"], eps), mask, heads)
            x = x + mlp(layer, norm(x, layer["ln_2.weight"], layer["ln_2.bias"], eps))
        x = norm(x, entries["ln_f.weight"], entries["ln_f.bias"], eps)
        return x @ head.T

    return gpt2
