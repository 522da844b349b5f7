"""Key/value caches: what a decoder keeps of the positions that it has seen (GEN-1), as NamedTuples of arrays.

They hold NumPy arrays, torch tensors or JAX arrays alike. Room for all positions is made once, so that every step has
the same shapes: what lies behind the first `length` positions is 0 and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specification.arrays import Array
from specification.configuration import Configuration
from specification.rotary import DynamicScaling, LongRopeScaling


class BlockCache(NamedTuple):
    """Projected keys and values of one decoder block, split into heads.

    keys [B, G, capacity, D], values [B, G, capacity, V]: of the self-attention; where that is latent, its latents
    [B, 1, capacity, C] and the rotated key of all heads [B, 1, capacity, R] (MLA-1). memory_keys [B, G, S, D],
    memory_values [B, G, S, V]: of the attention to the encoder's output; None where there is none.
    """

    keys: Any
    values: Any
    memory_keys: Any = None
    memory_values: Any = None


class Cache(NamedTuple):
    """One `BlockCache` for every decoder block, and what is known of the positions.

    real: booleans [B, capacity], the positions that hold a token that is not padding. memory_real: the same of the
    source, [B, S]; None where nothing in it is padding. length: how many positions there are.
    """

    blocks: list[BlockCache]
    real: Any
    memory_real: Any
    length: Any

    @property
    def capacity(self) -> int:
        """How many positions there is room for."""
        return self.real.shape[1]


def looks_ahead(
    tokens: Array, length: int | None, configuration: Configuration, readable: Callable[[Any], np.ndarray | None]
) -> str:
    """Tell what the configuration asks for that no cache can hold, because it changes with the tokens that follow.

    A token that attends to nothing may take the mean of all values, those of later positions too (ATT-6): what a full
    pass gives there, and where that is read from, changes with every token that is added. And rotations may depend on
    the length of the sequence (POS-4): then keys that are kept are turned otherwise than those of a longer sequence.

    tokens: ids [B, T], with `length` others before them. `readable` gives an array as NumPy's, or None where it cannot
    be read. The result is such a key or such a token; empty where there is neither, or tokens or length cannot be read.
    """
    if length and outgrown(configuration, length, tokens.shape[1]):
        return "keys whose rotation changes with the length of the sequence"
    if configuration.empty_rows != "mean" or configuration.target_padding is None:
        return ""
    if configuration.target_mask == "causal and real queries":
        values = readable(tokens)
    elif configuration.target_mask == "causal and real keys" and length == 0:
        values = readable(tokens[:, :1])  # who begins with a real token sees at least that one
    else:
        return ""
    there = values is not None and (values == configuration.target_padding).any()
    return "padding that attends to nothing, and takes the mean of all values with empty_rows='mean'" if there else ""


def outgrown(configuration: Configuration, length: int, count: int) -> bool:
    """Tell whether `count` tokens more turn the `length` keys before them otherwise than they are kept (POS-4)."""
    scalings = [layer.rotary.scaling for layer in configuration.attention_layers if layer.rotary is not None]
    limits = [s.original_length for s in scalings if isinstance(s, DynamicScaling)]
    borders = [s.original_length for s in scalings if isinstance(s, LongRopeScaling)]
    stop = length + count
    return any(stop > limit for limit in limits) or any(length <= border < stop for border in borders)
