"""The port to JAX: the definition's functions on `jax.Array`, under `jax.jit`, `jax.vmap` and `jax.grad`.

Read in this order: masks, attention_steps, attention, multi_head_attention, layer_norm_steps, layer_norm, embedding,
positions, feed_forward, blocks, transformer, decoding, generation, models. `engines/` holds a faster way to the results
of `attention`, and has not to be read. The definition, `reference_numpy`, holds the full statement of each operation;
here stands what is particular to JAX. Gradients come from `jax.grad`, and reverse mode may be nested; attention has no
forward mode (`jax.jvp`, `jax.jacfwd`, `jax.hessian`).
"""

from jax_impl.attention import attention, attention_logsumexp, attention_weights, merge_attention
from jax_impl.blocks import decoder_block, encoder_block
from jax_impl.decoding import decode_step, start
from jax_impl.embedding import embedding
from jax_impl.engines.choice import explain_engine
from jax_impl.feed_forward import feed_forward
from jax_impl.generation import beam_search, choose, greedy, sample
from jax_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from jax_impl.masks import materialize
from jax_impl.models import Model, load, plain_self_attention, restore, save
from jax_impl.multi_head_attention import multi_head_attention
from jax_impl.positions import learned_positions, sinusoidal_positions
from jax_impl.transformer import classifier, decoder, embed, encoder, language_model, pool, transformer

__all__ = [
    "Model",
    "attention",
    "attention_logsumexp",
    "attention_weights",
    "beam_search",
    "choose",
    "classifier",
    "decode_step",
    "decoder",
    "decoder_block",
    "embed",
    "embedding",
    "encoder",
    "encoder_block",
    "explain_engine",
    "feed_forward",
    "greedy",
    "language_model",
    "layer_norm",
    "learned_positions",
    "load",
    "materialize",
    "merge_attention",
    "multi_head_attention",
    "plain_self_attention",
    "pool",
    "restore",
    "rms_norm",
    "sample",
    "save",
    "sinusoidal_positions",
    "standard_deviation_norm",
    "start",
    "transformer",
]
