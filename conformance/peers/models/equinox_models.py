"""Equinox: BERT of its modules, over a batch by `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox
import jax
import jax.numpy as jnp
from equinox import nn

from conformance.peers.models.layers import Affine, Entries, Layer, read_affine, read_bert

ACTIVATIONS: dict[str, Any] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
}
KEY = jax.random.key(0)


def fill(module: Any, affine: Affine) -> Any:
    """The module with this weight and bias."""
    return equinox.tree_at(lambda one: (one.weight, one.bias), module, tuple(map(jnp.asarray, affine)))


def make_linear(affine: Affine) -> Any:
    out, width = affine[0].shape
    return fill(nn.Linear(width, out, key=KEY), affine)


def make_norm(affine: Affine, eps: float) -> Any:
    return fill(nn.LayerNorm(len(affine[0]), eps), affine)


class BertLayer(equinox.Module):
    attention: nn.MultiheadAttention
    attention_norm: nn.LayerNorm
    inner: nn.Linear
    outer: nn.Linear
    feed_forward_norm: nn.LayerNorm
    activate: Callable[..., Any]

    def __init__(self, layer: Layer, heads: int, activation: str, eps: float) -> None:
        biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
        attention = nn.MultiheadAttention(heads, layer.query[0].shape[1], **biases, key=KEY)
        projections = [make_linear(affine) for affine in layer[:4]]
        self.attention = equinox.tree_at(
            lambda one: [one.query_proj, one.key_proj, one.value_proj, one.output_proj], attention, projections
        )
        self.attention_norm = make_norm(layer.attention_norm, eps)
        self.inner, self.outer = make_linear(layer.inner), make_linear(layer.outer)
        self.feed_forward_norm = make_norm(layer.feed_forward_norm, eps)
        self.activate = ACTIVATIONS[activation]

    def __call__(self, x: Any, mask: Any) -> Any:
        x = jax.vmap(self.attention_norm)(x + self.attention(x, x, x, mask=mask))
        hidden = self.activate(jax.vmap(self.inner)(x))
        return jax.vmap(self.feed_forward_norm)(x + jax.vmap(self.outer)(hidden))


def build_bert(config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    heads, eps, activation = config["num_attention_heads"], config["layer_norm_eps"], config["hidden_act"]
    layers = [BertLayer(layer, heads, activation, eps) for layer in read_bert(config, state_dict)]
    words, positions, types = (
        jnp.asarray(state_dict[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position", "token_type")
    )
    norm = make_norm(read_affine(state_dict, "embeddings.LayerNorm"), eps)

    def encode_one(tokens: Any, keep: Any, kinds: Any) -> Any:
        length = len(tokens)
        x = jax.vmap(norm)(words[tokens] + positions[:length] + types[kinds])
        for layer in layers:
            x = layer(x, jnp.broadcast_to(keep, (length, length)))
        return x

    @equinox.filter_jit
    def encode(tokens: Any, key_padding: Any = None, token_types: Any = None) -> Any:
        keep = jnp.ones(tokens.shape, bool) if key_padding is None else key_padding
        kinds = jnp.zeros_like(tokens) if token_types is None else token_types
        return jax.vmap(encode_one)(tokens, keep, kinds)

    return encode
