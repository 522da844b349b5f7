"""Keras: BERT of its layers, on the backend that the environment names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import keras
import numpy as np

from conformance.peers.models.layers import Affine, Entries, Layer, read_affine, read_bert

ACTIVATIONS: dict[str, Any] = {
    "gelu": partial(keras.activations.gelu, approximate=False),
    "gelu_new": partial(keras.activations.gelu, approximate=True),
    "relu": "relu",
}


def fill(layer: Any, shape: tuple[int, ...], weights: Iterable[np.ndarray]) -> Any:
    """Build the layer for inputs of this shape, and give it these weights."""
    layer.build(*shape) if isinstance(layer, keras.layers.MultiHeadAttention) else layer.build(shape)
    layer.set_weights(list(weights))
    return layer


def make_dense(affine: Affine, activation: Any = None) -> Any:
    weight, bias = affine
    return fill(keras.layers.Dense(len(weight), activation), (1, weight.shape[1]), (weight.T, bias))


def make_norm(affine: Affine, eps: float) -> Any:
    return fill(keras.layers.LayerNormalization(epsilon=eps), (1, len(affine[0])), affine)


def make_attention(layer: Layer, heads: int) -> Any:
    width = layer.query[0].shape[1]
    weights = list[np.ndarray]()
    for weight, bias in (layer.query, layer.key, layer.value):
        weights += [weight.T.reshape(width, heads, -1), bias.reshape(heads, -1)]
    weight, bias = layer.output
    weights += [weight.T.reshape(heads, -1, len(weight)), bias]
    module = keras.layers.MultiHeadAttention(heads, len(layer.query[0]) // heads)
    module.build((1, 1, width), (1, 1, width))
    module.set_weights(weights)
    return module


class BertLayer:
    def __init__(self, layer: Layer, heads: int, activation: str, eps: float) -> None:
        self.attention = make_attention(layer, heads)
        self.attention_norm = make_norm(layer.attention_norm, eps)
        self.inner, self.outer = make_dense(layer.inner, ACTIVATIONS[activation]), make_dense(layer.outer)
        self.feed_forward_norm = make_norm(layer.feed_forward_norm, eps)

    def __call__(self, x: Any, mask: Any) -> Any:
        x = self.attention_norm(x + self.attention(x, x, attention_mask=mask))
        return self.feed_forward_norm(x + self.outer(self.inner(x)))


def build_bert(config: dict[str, Any], state_dict: Entries) -> Callable[..., Any]:
    heads, eps, activation = config["num_attention_heads"], config["layer_norm_eps"], config["hidden_act"]
    layers = [BertLayer(layer, heads, activation, eps) for layer in read_bert(config, state_dict)]
    words, positions, types = (
        keras.ops.convert_to_tensor(state_dict[f"embeddings.{name}_embeddings.weight"])
        for name in ("word", "position", "token_type")
    )
    norm = make_norm(read_affine(state_dict, "embeddings.LayerNorm"), eps)

    def encode(tokens: Any, key_padding: Any = None, token_types: Any = None) -> Any:
        kinds = keras.ops.zeros_like(tokens) if token_types is None else token_types
        x = keras.ops.take(words, tokens, axis=0) + positions[: tokens.shape[1]] + keras.ops.take(types, kinds, axis=0)
        x = norm(x)
        for layer in layers:
            x = layer(x, None if key_padding is None else key_padding[:, None, :])
        return x

    return encode
