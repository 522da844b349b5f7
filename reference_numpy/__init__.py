"""The definition: what a Transformer computes, in NumPy, to be read.

Read in this order: masks, attention, layer_norm, embedding, positions, feed_forward. Beside each file stands the one
with its gradients, `<name>_vjp`.
"""

from reference_numpy.attention import (
    attention,
    attention_logsumexp,
    attention_weights,
    merge_attention,
    multi_head_attention,
)
from reference_numpy.attention_vjp import (
    AttentionGradients,
    MultiHeadAttentionGradients,
    attention_logsumexp_vjp,
    attention_vjp,
    attention_weights_vjp,
    merge_attention_vjp,
    multi_head_attention_vjp,
)
from reference_numpy.embedding import embedding
from reference_numpy.embedding_vjp import embedding_vjp
from reference_numpy.feed_forward import feed_forward
from reference_numpy.feed_forward_vjp import FeedForwardGradients, feed_forward_vjp
from reference_numpy.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from reference_numpy.layer_norm_vjp import NormGradients, layer_norm_vjp, rms_norm_vjp, standard_deviation_norm_vjp
from reference_numpy.masks import materialize
from reference_numpy.positions import learned_positions, sinusoidal_positions
from reference_numpy.positions_vjp import learned_positions_vjp

__all__ = [
    "AttentionGradients",
    "FeedForwardGradients",
    "MultiHeadAttentionGradients",
    "NormGradients",
    "attention",
    "attention_logsumexp",
    "attention_logsumexp_vjp",
    "attention_vjp",
    "attention_weights",
    "attention_weights_vjp",
    "embedding",
    "embedding_vjp",
    "feed_forward",
    "feed_forward_vjp",
    "layer_norm",
    "layer_norm_vjp",
    "learned_positions",
    "learned_positions_vjp",
    "materialize",
    "merge_attention",
    "merge_attention_vjp",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "rms_norm",
    "rms_norm_vjp",
    "sinusoidal_positions",
    "standard_deviation_norm",
    "standard_deviation_norm_vjp",
]
