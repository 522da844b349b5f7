"""transformer101: multi-head self-attention with one projection of query, key and value for every head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.dialects.reading import Reader
from specification.parameters import Linear, MultiHeadAttention


def transformer101(state_dict: Mapping[str, Any]) -> tuple[MultiHeadAttention, Configuration]:
    read = Reader(state_dict)
    return per_head(read, "output_linear")


def per_head(read: Reader, output: str) -> tuple[MultiHeadAttention, Configuration]:
    """Heads whose number is read off the names; those of one model are of one width, and values may have another."""
    num_heads = read.count(r"heads\.(\d+)\.")

    def heads(part: str, width: str) -> list[Linear]:
        return [read.linear(f"heads.{h}.{part}", "E", width) for h in range(num_heads)]

    query, key, value = heads("q", "D"), heads("k", "D"), heads("v", "V")
    V = read.sizes.get("V")
    joined = "heads together" if V is None else num_heads * V
    parameters = MultiHeadAttention(query, key, value, read.linear(output, joined, "E"))
    read.finish()
    return parameters, Configuration(num_heads=num_heads)
