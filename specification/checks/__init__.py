"""Checks on arguments: the same error, with the same words, for the same mistake in all three implementations.

Everything here looks at shapes, dtypes and plain numbers only, which are known even while a framework is tracing. What
depends on values (`mask_values`, `ids_within`) takes them as NumPy arrays, and an implementation calls it when it
can read them.
"""

from specification.checks.arguments import cotangent
from specification.checks.masks import mask, mask_values
from specification.checks.operations import (
    attention,
    embedding,
    feed_forward,
    ids_within,
    join_heads,
    learned_positions,
    merge,
    multi_head_attention,
    norm,
    positions,
    standard_deviation_norm,
    structure,
)

__all__ = [
    "attention",
    "cotangent",
    "embedding",
    "feed_forward",
    "ids_within",
    "join_heads",
    "learned_positions",
    "mask",
    "mask_values",
    "merge",
    "multi_head_attention",
    "norm",
    "positions",
    "standard_deviation_norm",
    "structure",
]
