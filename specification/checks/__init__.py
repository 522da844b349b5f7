"""Checks on arguments: the same error, with the same words, for the same mistake in all three implementations.

Everything here looks at shapes, dtypes and plain numbers only, which are known even while a framework is tracing. What
depends on values (`mask_values`, `ids_within`) takes them as NumPy arrays, and an implementation calls it when it
can read them.
"""

from specification.checks.arguments import cotangent, dropout, structure
from specification.checks.generation import (
    beams,
    choice,
    decode_step,
    empty_cache,
    generation,
    held,
    no_look_ahead,
    sampling,
    tokens,
    uniform,
    uniform_steps,
    uniform_values,
)
from specification.checks.masks import mask, mask_values
from specification.checks.operations import (
    attention,
    embed,
    embedding,
    feed_forward,
    ids_within,
    join_heads,
    learned_positions,
    memory,
    merge,
    multi_head_attention,
    no_bias,
    norm,
    pool,
    positions,
    stack,
    standard_deviation_norm,
    summands,
)
from specification.checks.sites import decoder_sites, site, sites

__all__ = [
    "attention",
    "beams",
    "choice",
    "cotangent",
    "decode_step",
    "decoder_sites",
    "dropout",
    "embed",
    "embedding",
    "empty_cache",
    "feed_forward",
    "generation",
    "held",
    "ids_within",
    "join_heads",
    "learned_positions",
    "mask",
    "mask_values",
    "memory",
    "merge",
    "multi_head_attention",
    "no_bias",
    "no_look_ahead",
    "norm",
    "pool",
    "positions",
    "sampling",
    "site",
    "sites",
    "stack",
    "standard_deviation_norm",
    "structure",
    "summands",
    "tokens",
    "uniform",
    "uniform_steps",
    "uniform_values",
]
