"""Llama in JAX: queries grouped by their key head, a cache of fixed length for decoding, gradients by jax.vjp."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from conformance.selftest.ports.entries import find_head
from conformance.selftest.ports.frequencies import compute_frequencies
from conformance.selftest.ports.gradients import differentiate_function

CAPACITY = 64
"""Positions of a cache."""


class Spec(NamedTuple):
    layers: int
    heads: int
    key_heads: int
    width: int
    eps: float
    act: str
    frequencies: tuple[float, ...]
    rotary_factor: float


class Cache(NamedTuple):
    keys: jax.Array  # [layers, B, CAPACITY, G, D]
    values: jax.Array
    length: jax.Array


def read_spec(config: dict[str, Any]) -> Spec:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    frequencies, factor = compute_frequencies(config, width)
    return Spec(
        layers=config["num_hidden_layers"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        width=width,
        eps=config.get("rms_norm_eps", 1e-6),
        act=config.get("hidden_act", "silu"),
        frequencies=tuple(frequencies.tolist()),
        rotary_factor=factor,
    )


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * (scale * weight.astype(jnp.float32))).astype(x.dtype)


def rope(spec: Spec, x: jax.Array, positions: jax.Array) -> jax.Array:
    """x: [B, T, heads, D]."""
    angles = positions[:, None] * jnp.array(spec.frequencies, jnp.float32)
    cos, sin = (spec.rotary_factor * f(angles)[None, :, None, :] for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def project(entries: dict[str, Any], name: str, x: jax.Array) -> jax.Array:
    y = jnp.einsum("bte,fe->btf", x, entries[name + ".weight"])
    bias = entries.get(name + ".bias")
    return y if bias is None else y + bias


def grouped_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """q: [B, T, H, D], k and v: [B, S, G, D], mask: [B, T, S]."""
    B, T, H, D = q.shape
    G = k.shape[2]
    grouped = q.reshape(B, T, G, H // G, D)
    scores = jnp.einsum("btgrd,bsgd->bgrts", grouped, k, preferred_element_type=jnp.float32) / np.sqrt(D)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    # A row without keys gets finite scores and no weights, where -inf alone would make it NaN.
    largest = jnp.where(mask.any(-1)[:, None, None, :, None], scores.max(-1, keepdims=True), 0)
    powers = jnp.exp(scores - largest)
    weights = powers / jnp.maximum(powers.sum(-1, keepdims=True), 1e-30)
    return jnp.einsum("bgrts,bsgd->btgrd", weights.astype(v.dtype), v).reshape(B, T, H * D)


def run(spec: Spec, entries: dict[str, Any], tokens: jax.Array, mask: jax.Array, cache: Cache | None = None) -> Any:
    B, T = tokens.shape
    offset = 0 if cache is None else cache.length
    positions = offset + jnp.arange(T)
    act = jax.nn.silu if spec.act == "silu" else partial(jax.nn.gelu, approximate=False)
    x = jnp.take(entries["model.embed_tokens.weight"], tokens, axis=0)
    for i in range(spec.layers):
        name = f"model.layers.{i}"
        h = rms_norm(x, entries[f"{name}.input_layernorm.weight"], spec.eps)
        q = project(entries, f"{name}.self_attn.q_proj", h).reshape(B, T, spec.heads, spec.width)
        k = project(entries, f"{name}.self_attn.k_proj", h).reshape(B, T, spec.key_heads, spec.width)
        v = project(entries, f"{name}.self_attn.v_proj", h).reshape(B, T, spec.key_heads, spec.width)
        q, k = rope(spec, q, positions), rope(spec, k, positions)
        if cache is not None:
            cache = cache._replace(
                keys=jax.lax.dynamic_update_slice(cache.keys, k[None], (i, 0, offset, 0, 0)),
                values=jax.lax.dynamic_update_slice(cache.values, v[None], (i, 0, offset, 0, 0)),
            )
            k, v = cache.keys[i], cache.values[i]
        x += project(entries, f"{name}.self_attn.o_proj", grouped_attention(q, k, v, mask))
        h = rms_norm(x, entries[f"{name}.post_attention_layernorm.weight"], spec.eps)
        gate = act(project(entries, f"{name}.mlp.gate_proj", h))
        x += project(entries, f"{name}.mlp.down_proj", gate * project(entries, f"{name}.mlp.up_proj", h))
    x = rms_norm(x, entries["model.norm.weight"], spec.eps)
    logits = x @ find_head(entries, "model.embed_tokens.weight").T
    return logits, cache


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    spec = read_spec(config)
    dtype = config.get("dtype", "float32")
    entries = {name: jnp.asarray(array).astype(dtype) for name, array in state_dict.items()}

    @jax.jit
    def forward(entries: dict[str, Any], tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        B, T = tokens.shape
        mask = jnp.arange(T)[:, None] >= jnp.arange(T)
        mask = jnp.broadcast_to(mask, (B, T, T))
        if key_padding is not None:
            mask &= key_padding[:, None, :]
        return run(spec, entries, tokens, mask)[0]

    @jax.jit
    def decode(entries: dict[str, Any], tokens: jax.Array, cache: Cache) -> Any:
        B, T = tokens.shape
        last = cache.length + jnp.arange(T)
        mask = jnp.broadcast_to(jnp.arange(CAPACITY) <= last[:, None], (B, T, CAPACITY))
        logits, filled = run(spec, entries, tokens, mask, cache)
        return logits, filled._replace(length=cache.length + T)

    def call(tokens: jax.Array, key_padding: jax.Array | None = None) -> jax.Array:
        return forward(entries, tokens, key_padding)

    def step(tokens: jax.Array, cache: Cache | None = None) -> Any:
        if cache is None:
            empty = jnp.zeros((spec.layers, len(tokens), CAPACITY, spec.key_heads, spec.width), dtype)
            cache = Cache(empty, empty, jnp.array(0))
        return decode(entries, tokens, cache)

    call.step, call.vjp = step, differentiate_function(entries, forward)  # type: ignore[attr-defined]
    return call
