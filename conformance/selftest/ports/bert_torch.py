"""BERT in PyTorch: modules that bear the names of the checkpoint's entries, which `load_state_dict` fills."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from conformance.selftest.ports.gradients import differentiate_module

ACTIVATIONS = {"gelu": nn.GELU(), "gelu_new": nn.GELU(approximate="tanh"), "relu": nn.ReLU()}


class Embeddings(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.get("layer_norm_eps", 1e-12))

    def forward(self, tokens: torch.Tensor, token_types: torch.Tensor | None) -> Any:
        positions = torch.arange(tokens.shape[1])
        if token_types is None:
            token_types = torch.zeros_like(tokens)
        x = self.word_embeddings(tokens)
        x = x + self.token_type_embeddings(token_types)
        x = x + self.position_embeddings(positions)
        return self.LayerNorm(x)


class SelfAttention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.heads, self.head_width = config["num_attention_heads"], width // config["num_attention_heads"]
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class SublayerOutput(nn.Module):
    def __init__(self, inner: int, width: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=eps)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        return self.LayerNorm(self.dense(hidden) + residual)


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, inner, eps = config["hidden_size"], config["intermediate_size"], config.get("layer_norm_eps", 1e-12)
        output = SublayerOutput(width, width, eps)
        self.attention = nn.ModuleDict({"self": SelfAttention(config), "output": output})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.activation = ACTIVATIONS[config.get("hidden_act", "gelu")]
        self.output = SublayerOutput(inner, width, eps)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> Any:
        attended = self.attention["self"](x, mask)
        x = self.attention["output"](attended, x)
        hidden = self.activation(self.intermediate["dense"](x))
        return self.output(hidden, x)


class Bert(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = [Layer(config) for _ in range(config["num_hidden_layers"])]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def forward(
        self, tokens: torch.Tensor, key_padding: torch.Tensor | None = None, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.embeddings(tokens, token_types)
        mask = None
        if key_padding is not None:
            mask = torch.zeros(key_padding.shape, dtype=x.dtype)
            mask = mask.masked_fill(~key_padding, torch.finfo(x.dtype).min)[:, None, None, :]
        layers: Any = self.encoder["layer"]
        for layer in layers:
            x = layer(x, mask)
        return x


def build(config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    model = Bert(config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state_dict.items()})
    model.to(getattr(torch, config.get("dtype", "float32"))).eval()

    def call(tokens: torch.Tensor, key_padding: Any = None, token_types: Any = None) -> torch.Tensor:
        with torch.no_grad():
            return model(tokens.long(), key_padding, None if token_types is None else token_types.long())

    call.vjp = differentiate_module(model, model)  # type: ignore[attr-defined]
    return call
