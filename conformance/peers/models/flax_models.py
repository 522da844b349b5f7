"""Flax: BERT of linen's modules, and GPT-2 of nnx's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from conformance.peers.models.layers import (
    Affine,
    Entries,
    Layer,
    read_affine,
    read_bert,
    read_gpt2,
    read_gpt2_output,
)

ACTIVATIONS: dict[str, Any] = {
    "gelu": partial(linen.gelu, approximate=False),
    "gelu_new": linen.gelu,
    "relu": linen.relu,
}


class BertLayer(linen.Module):
    heads: int
    inner: int
    activation: str
    eps: float

    @linen.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        norm = partial(linen.LayerNorm, epsilon=self.eps)
        attended = linen.MultiHeadDotProductAttention(self.heads, name="attention")(x, mask=mask)
        x = norm(name="attention_norm")(x + attended)
        hidden = ACTIVATIONS[self.activation](linen.Dense(self.inner, name="inner")(x))
        return norm(name="feed_forward_norm")(x + linen.Dense(x.shape[-1], name="outer")(hidden))


def name_dense(affine: Affine) -> dict[str, Any]:
    return {"kernel": jnp.asarray(affine[0].T), "bias": jnp.asarray(affine[1])}


def name_norm(affine: Affine) -> dict[str, Any]:
    return {"scale": jnp.asarray(affine[0]), "bias": jnp.asarray(affine[1])}


def split_heads(affine: Affine, heads: int) -> dict[str, Any]:
    """The kernel [in, heads, width] of a projection to heads."""
    weight, bias = affine
    kernel = jnp.asarray(weight.T).reshape(weight.shape[1], heads, -1)
    return {"kernel": kernel, "bias": jnp.asarray(bias).reshape(heads, -1)}


def name_attention(layer: Layer, heads: int) -> dict[str, Any]:
    weight, bias = layer.output
    output = {"kernel": jnp.asarray(weight.T).reshape(heads, -1, len(weight)), "bias": jnp.asarray(bias)}
    projections = {"query": layer.query, "key": layer.key, "value": layer.value}
    return {name: split_heads(affine, heads) for name, affine in projections.items()} | {"out": output}


def name_layer(layer: Layer, heads: int) -> dict[str, Any]:
    return {
        "attention": name_attention(layer, heads),
        "attention_norm": name_norm(layer.attention_norm),
        "inner": name_dense(layer.inner),
        "outer": name_dense(layer.outer),
        "feed_forward_norm": name_norm(layer.feed_forward_norm),
    }


def build_bert(config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    layers = [name_layer(layer, heads) for layer in read_bert(config, state_dict)]
    module = BertLayer(heads, config["intermediate_size"], config["hidden_act"], eps)
    words, positions, types = (
        jnp.asarray(state_dict[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position", "token_type")
    )
    embedding_norm = name_norm(read_affine(state_dict, "embeddings.LayerNorm"))

    @jax.jit
    def encode(tokens: Any, key_padding: Any = None, token_types: Any = None) -> Any:
        kinds = jnp.zeros_like(tokens) if token_types is None else token_types
        x: Any = words[tokens] + positions[: tokens.shape[1]] + types[kinds]
        x = linen.LayerNorm(epsilon=eps).apply({"params": embedding_norm}, x)
        mask = None if key_padding is None else linen.make_attention_mask(jnp.ones_like(tokens), key_padding)
        for layer in layers:
            x = module.apply({"params": layer}, x, mask)
        return x

    return encode


class Gpt2Layer(nnx.Module):
    def __init__(self, layer: Layer, heads: int, activation: str, eps: float) -> None:
        inner, width = layer.inner[0].shape
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = (nnx.LayerNorm(width, epsilon=eps, rngs=rngs) for _ in range(2))
        self.inner, self.outer = nnx.Linear(width, inner, rngs=rngs), nnx.Linear(inner, width, rngs=rngs)
        self.activate = ACTIVATIONS[activation]
        named = name_layer(layer, heads)
        for name, entries in named.pop("attention").items():
            fill(getattr(self.attention, name), entries)
        for name, entries in named.items():
            fill(getattr(self, name), entries)

    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + self.attention(self.attention_norm(x), mask=mask)
        return x + self.outer(self.activate(self.inner(self.feed_forward_norm(x))))


def fill(module: Any, entries: dict[str, Any]) -> None:
    """Give a module of nnx these arrays; ValueError for another shape."""
    for name, array in entries.items():
        variable = getattr(module, name)
        if variable.shape != array.shape:
            raise ValueError(f"{name} is {variable.shape}, not {array.shape}")
        variable.set_value(array)


def build_gpt2(config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    heads, eps, activation = config["n_head"], config["layer_norm_epsilon"], config["activation_function"]
    layers = [Gpt2Layer(layer, heads, activation, eps) for layer in read_gpt2(config, state_dict)]
    last = nnx.LayerNorm(config["n_embd"], epsilon=eps, rngs=nnx.Rngs(0))
    fill(last, name_norm(read_affine(state_dict, "transformer.ln_f")))
    words, positions = (jnp.asarray(state_dict[f"transformer.{name}.weight"]) for name in ("wte", "wpe"))
    head = jnp.asarray(read_gpt2_output(state_dict))

    @jax.jit
    def predict(tokens: Any, key_padding: Any = None) -> Any:
        keep = jnp.ones_like(tokens) if key_padding is None else key_padding
        mask = nnx.combine_masks(nnx.make_causal_mask(tokens), nnx.make_attention_mask(jnp.ones_like(tokens), keep))
        x = words[tokens] + positions[: tokens.shape[1]]
        for layer in layers:
            x = layer(x, mask)
        return last(x) @ head.T

    return predict
