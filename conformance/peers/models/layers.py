"""The layers of BERT's and GPT-2's checkpoints, for libraries that name what a layer holds otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Affine = tuple[np.ndarray, np.ndarray]
"""A weight, [out, in] of a projection and [width] of a norm, and its bias."""
Entries = Mapping[str, np.ndarray]


class Layer(NamedTuple):
    query: Affine
    key: Affine
    value: Affine
    output: Affine
    attention_norm: Affine
    inner: Affine
    outer: Affine
    feed_forward_norm: Affine


BERT_NAMES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)


def read_affine(entries: Entries, name: str) -> Affine:
    return entries[f"{name}.weight"], entries[f"{name}.bias"]


def read_bert(config: Mapping[str, Any], entries: Entries) -> list[Layer]:
    places = [f"encoder.layer.{i}" for i in range(config["num_hidden_layers"])]
    return [Layer(*(read_affine(entries, f"{place}.{name}") for name in BERT_NAMES)) for place in places]


def read_gpt2(config: Mapping[str, Any], entries: Entries) -> list[Layer]:
    """Projections are stored [in, out], those of query, key and value in one."""
    return [read_gpt2_layer(entries, f"transformer.h.{i}") for i in range(config["n_layer"])]


def read_gpt2_layer(entries: Entries, place: str) -> Layer:
    def read_turned(name: str) -> Affine:
        weight, bias = read_affine(entries, f"{place}.{name}")
        return weight.T, bias

    weight, bias = read_turned("attn.c_attn")
    query, key, value = zip(np.split(weight, 3), np.split(bias, 3), strict=True)
    return Layer(
        query, key, value, read_turned("attn.c_proj"), read_affine(entries, f"{place}.ln_1"),
        read_turned("mlp.c_fc"), read_turned("mlp.c_proj"), read_affine(entries, f"{place}.ln_2"),
    )  # fmt: skip


def read_gpt2_output(entries: Entries) -> np.ndarray:
    """Return the output layer [vocabulary, width]: its own entry, or the token table where the two are tied."""
    return entries.get("lm_head.weight", entries["transformer.wte.weight"])
