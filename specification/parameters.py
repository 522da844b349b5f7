"""Parameter structures: NamedTuples of arrays, nested the way the calls are.

They hold NumPy arrays, torch tensors or JAX arrays alike (for JAX they are pytrees as they stand). Sizes are not
stored: they come from the shapes.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Linear(NamedTuple):
    """x @ weight + bias, with weight [in, out] and bias [out] or None."""

    weight: Any
    bias: Any = None


class MultiHeadAttention(NamedTuple):
    """The four projections of multi-head attention (MHA-1).

    query [E, H*D], key [E, G*D], value [E, G*V], output [H*V, E_out]. Each of the first three may instead be a list of
    per-head projections in head order (MHA-2).
    """

    query: Linear | list[Linear]
    key: Linear | list[Linear]
    value: Linear | list[Linear]
    output: Linear


class FeedForward(NamedTuple):
    """The two projections of the feed-forward network (FFN-1): inner [E, F], outer [F, E_out]."""

    inner: Linear
    outer: Linear
