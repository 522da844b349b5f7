"""BERT in JAX: one jitted function of a dictionary of entries, with heads as an axis of the projections."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from conformance.selftest.ports.gradients import differentiate_function

Entries = dict[str, Any]


def activate(name: str, x: jax.Array) -> jax.Array:
    if name == "gelu":
        return jax.nn.gelu(x, approximate=False)
    if name == "gelu_new":
        return jax.nn.gelu(x, approximate=True)
    return jax.nn.relu(x)


def layer_norm(entries: Entries, name: str, x: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    deviation = wide - wide.mean(-1, keepdims=True)
    variance = (deviation**2).mean(-1, keepdims=True)
    normalized = deviation * jax.lax.rsqrt(variance + eps)
    return (normalized * entries[f"{name}.weight"] + entries[f"{name}.bias"]).astype(x.dtype)


def dense(entries: Entries, name: str, x: jax.Array) -> jax.Array:
    return x @ entries[f"{name}.weight"].T + entries[f"{name}.bias"]


def attend(entries: Entries, name: str, x: jax.Array, key_padding: jax.Array | None, heads: int) -> jax.Array:
    q, k, v = (
        jnp.reshape(dense(entries, f"{name}.self.{part}", x), (*x.shape[:2], heads, -1))
        for part in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    if key_padding is not None:
        scores = jnp.where(key_padding[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x.dtype)
    heads_together = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    return dense(entries, f"{name}.output.dense", heads_together)


def apply(
    config: dict[str, Any],
    entries: Entries,
    tokens: jax.Array,
    key_padding: jax.Array | None = None,
    token_types: jax.Array | None = None,
) -> jax.Array:
    eps, act = config.get("layer_norm_eps", 1e-12), config.get("hidden_act", "gelu")
    if token_types is None:
        token_types = jnp.zeros_like(tokens)
    x = entries["embeddings.word_embeddings.weight"][tokens]
    x += entries["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x += entries["embeddings.token_type_embeddings.weight"][token_types]
    x = layer_norm(entries, "embeddings.LayerNorm", x, eps)
    for i in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{i}"
        attended = attend(entries, f"{name}.attention", x, key_padding, config["num_attention_heads"])
        x = layer_norm(entries, f"{name}.attention.output.LayerNorm", x + attended, eps)
        hidden = activate(act, dense(entries, f"{name}.intermediate.dense", x))
        x = layer_norm(entries, f"{name}.output.LayerNorm", x + dense(entries, f"{name}.output.dense", hidden), eps)
    return x


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    entries = {name: jnp.asarray(array, config.get("dtype", "float32")) for name, array in state_dict.items()}
    jitted = jax.jit(partial(apply, config))

    def call(tokens: jax.Array, key_padding: Any = None, token_types: Any = None) -> jax.Array:
        return jitted(entries, tokens, key_padding, token_types)

    call.vjp = differentiate_function(entries, jitted)  # type: ignore[attr-defined]
    return call
