"""T5 in JAX: encoder and decoder are functions of their own; buckets are found by comparing with their edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.selftest.ports.entries import find_head, group_layers, strip_prefix

Layer = dict[str, Any]


def find_edges(count: int, furthest: int) -> list[int]:
    """Return the smallest distance of every bucket but the first."""
    exact = count // 2
    edges = list(range(1, exact + 1))
    for k in range(1, count - exact):
        # Compared as powers, because a root or a logarithm in floating point may fall on either side of an edge.
        n = count - exact
        edges.append(next(d for d in range(exact, furthest + 1) if d**n >= furthest**k * exact ** (n - k)))
    return edges


def relative_bias(table: jax.Array, length: int, furthest: int, bidirectional: bool) -> jax.Array:
    count = table.shape[0]
    ahead = np.arange(length)[None, :] - np.arange(length)[:, None]
    if bidirectional:
        count = count // 2
        ids = np.searchsorted(find_edges(count, furthest), np.abs(ahead), side="right") + count * (ahead > 0)
    else:
        ids = np.searchsorted(find_edges(count, furthest), np.maximum(-ahead, 0), side="right")
    return table[ids].transpose(2, 0, 1)


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    dtype = config.get("dtype", "float32")
    entries = {name: jnp.asarray(array, dtype) for name, array in state_dict.items()}
    shared, head = entries["shared.weight"], find_head(entries, "shared.weight")
    heads, eps = config["num_heads"], config.get("layer_norm_epsilon", 1e-6)
    furthest = config.get("relative_attention_max_distance", 128)
    kind = config.get("feed_forward_proj", "relu")
    encoder_layers = group_layers(entries, "encoder.block")
    decoder_layers = group_layers(entries, "decoder.block")

    def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps)).astype(dtype) * weight

    def attention(p: Layer, x: jax.Array, memory: jax.Array, bias: Any, mask: jax.Array) -> jax.Array:
        B, T, _ = x.shape
        q = (x @ p["q.weight"].T).reshape(B, T, heads, -1)
        k = (memory @ p["k.weight"].T).reshape(B, memory.shape[1], heads, -1)
        v = (memory @ p["v.weight"].T).reshape(B, memory.shape[1], heads, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) + bias
        scores = jnp.where(mask, scores, -1e30)
        weights = jax.nn.softmax(scores).astype(dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(B, T, -1) @ p["o.weight"].T

    def mlp(p: Layer, x: jax.Array) -> jax.Array:
        if kind == "relu":
            return jax.nn.relu(x @ p["wi.weight"].T) @ p["wo.weight"].T
        act = jax.nn.silu if kind == "gated-silu" else jax.nn.gelu
        return (act(x @ p["wi_0.weight"].T) * (x @ p["wi_1.weight"].T)) @ p["wo.weight"].T

    def part(layer: Layer, prefix: str) -> Layer:
        return strip_prefix({name: a for name, a in layer.items() if name.startswith(prefix)}, prefix)

    def encode(tokens: jax.Array, keep: jax.Array) -> jax.Array:
        x = shared[tokens]
        table = encoder_layers[0]["layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = relative_bias(table, tokens.shape[1], furthest, bidirectional=True)
        for layer in encoder_layers:
            h = norm(x, layer["layer.0.layer_norm.weight"])
            x = x + attention(part(layer, "layer.0.SelfAttention."), h, h, bias, keep)
            x = x + mlp(part(layer, "layer.1.DenseReluDense."), norm(x, layer["layer.1.layer_norm.weight"]))
        return norm(x, entries["encoder.final_layer_norm.weight"])

    def decode(tokens: jax.Array, keep: jax.Array, memory: jax.Array, memory_keep: jax.Array) -> jax.Array:
        x = shared[tokens]
        T = tokens.shape[1]
        table = decoder_layers[0]["layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = relative_bias(table, T, furthest, bidirectional=False)
        mask = jnp.tril(jnp.ones((T, T), bool)) & keep
        for layer in decoder_layers:
            h = norm(x, layer["layer.0.layer_norm.weight"])
            x = x + attention(part(layer, "layer.0.SelfAttention."), h, h, bias, mask)
            h = norm(x, layer["layer.1.layer_norm.weight"])
            x = x + attention(part(layer, "layer.1.EncDecAttention."), h, memory, 0.0, memory_keep)
            x = x + mlp(part(layer, "layer.2.DenseReluDense."), norm(x, layer["layer.2.layer_norm.weight"]))
        return norm(x, entries["decoder.final_layer_norm.weight"])

    def t5(
        source: jax.Array, target: jax.Array, source_key_padding: Any = None, target_key_padding: Any = None
    ) -> jax.Array:
        real = jnp.ones(source.shape, bool) if source_key_padding is None else source_key_padding
        real_target = jnp.ones(target.shape, bool) if target_key_padding is None else target_key_padding
        real, real_target = real[:, None, None, :], real_target[:, None, None, :]
        x = decode(target, real_target, encode(source, real), real)
        if config.get("tie_word_embeddings", True):
            x = x / jnp.sqrt(jnp.array(shared.shape[1], dtype))
        return x @ head.T

    return t5
