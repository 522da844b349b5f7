"""Key/value caches: what a decoder keeps of the positions that it has seen (GEN-1), as NamedTuples of arrays.

They hold NumPy arrays, torch tensors or JAX arrays alike. Room for all positions is made once, so that every step has
the same shapes: what lies behind the first `length` positions is 0 and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specification.configuration import Configuration
from specification.frequencies import counted_length


class BlockCache(NamedTuple):
    """Projected keys and values of one decoder block, split into heads.

    keys [B, G, capacity, D], values [B, G, capacity, V]: of the self-attention. memory_keys [B, G, S, D], memory_values
    [B, G, S, V]: of the attention to the encoder's output; None where there is none.
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
    tokens: Any, length: int | None, configuration: Configuration, readable: Callable[[Any], np.ndarray | None]
) -> bool:
    """Tell whether one of these tokens attends to nothing and takes the mean of all values for that.

    All are those of later positions too (ATT-6), so what a full pass gives there, and where that is read from, changes
    with every token that is added, and no cache can hold it.

    Args:
        tokens: ids [B, T].
        length: how many others come before them, or None where that cannot be read.
        configuration: the model's.
        readable: gives an array as NumPy's, or None where it cannot be read.

    Returns:
        Whether there is one; False where the tokens cannot be read.
    """
    if configuration.empty_rows != "mean" or configuration.target_padding is None:
        return False
    if configuration.target_mask == "causal and real queries":
        values = readable(tokens)
    elif configuration.target_mask == "causal and real keys" and length == 0:
        values = readable(tokens[:, :1])  # who begins with a real token sees at least that one
    else:
        return False
    return values is not None and bool((values == configuration.target_padding).any())


def turns_anew(length: int | None, stop: int, configuration: Configuration) -> bool:
    """Tell whether a sequence turns the keys that a cache has kept by other angles than they were turned by (POS-4).

    Args:
        length: how many positions the cache has, or None where that cannot be read.
        stop: how many there are with those that come now.
        configuration: the model's.

    Returns:
        Whether it does; False where the length cannot be read.
    """
    scalings = [layer.rotary.scaling for layer in configuration.attention_layers if layer.rotary is not None]
    return bool(length) and any(counted_length(s, length) != counted_length(s, stop) for s in scalings)
