"""The port to JAX: the definition's functions on `jax.Array`, under `jax.jit`, `jax.vmap` and `jax.grad`.

Read in this order: masks, attention, layer_norm, embedding, positions, feed_forward. The definition, `reference_numpy`,
holds the full statement of each operation; here stands what is particular to JAX. Gradients come from `jax.grad`, and
reverse mode may be nested; attention has no forward mode (`jax.jvp`, `jax.jacfwd`, `jax.hessian`).
"""

from jax_impl.attention import (
    attention,
    attention_logsumexp,
    attention_weights,
    merge_attention,
    multi_head_attention,
)
from jax_impl.embedding import embedding
from jax_impl.feed_forward import feed_forward
from jax_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from jax_impl.masks import materialize
from jax_impl.positions import learned_positions, sinusoidal_positions

__all__ = [
    "attention",
    "attention_logsumexp",
    "attention_weights",
    "embedding",
    "feed_forward",
    "layer_norm",
    "learned_positions",
    "materialize",
    "merge_attention",
    "multi_head_attention",
    "rms_norm",
    "sinusoidal_positions",
    "standard_deviation_norm",
]
