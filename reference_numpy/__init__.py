"""The definition: what a Transformer computes, in NumPy, to be read.

Read in this order: masks, attention_steps, attention, multi_head_attention, layer_norm_steps, layer_norm, embedding,
positions, feed_forward, blocks, transformer, decoding, generation, models. Beside each file stands the one with its
gradients, `<name>_vjp`.
"""

from reference_numpy.attention import attention, attention_logsumexp, attention_weights, merge_attention
from reference_numpy.attention_vjp import (
    AttentionGradients,
    attention_logsumexp_vjp,
    attention_vjp,
    attention_weights_vjp,
    merge_attention_vjp,
)
from reference_numpy.blocks import decoder_block, encoder_block
from reference_numpy.blocks_vjp import (
    DecoderBlockGradients,
    EncoderBlockGradients,
    decoder_block_vjp,
    encoder_block_vjp,
)
from reference_numpy.decoding import decode_step, start
from reference_numpy.embedding import embedding
from reference_numpy.embedding_vjp import embedding_vjp
from reference_numpy.feed_forward import feed_forward
from reference_numpy.feed_forward_vjp import FeedForwardGradients, feed_forward_vjp
from reference_numpy.generation import beam_search, choose, greedy, sample
from reference_numpy.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from reference_numpy.layer_norm_vjp import NormGradients, layer_norm_vjp, rms_norm_vjp, standard_deviation_norm_vjp
from reference_numpy.masks import materialize
from reference_numpy.models import Model, load, plain_self_attention, restore, save
from reference_numpy.multi_head_attention import multi_head_attention
from reference_numpy.multi_head_attention_vjp import MultiHeadAttentionGradients, multi_head_attention_vjp
from reference_numpy.positions import learned_positions, sinusoidal_positions
from reference_numpy.positions_vjp import learned_positions_vjp
from reference_numpy.transformer import classifier, decoder, embed, encoder, language_model, pool, transformer
from reference_numpy.transformer_vjp import (
    DecoderGradients,
    EncoderGradients,
    TransformerGradients,
    classifier_vjp,
    decoder_vjp,
    embed_vjp,
    encoder_vjp,
    language_model_vjp,
    pool_vjp,
    transformer_vjp,
)

__all__ = [
    "AttentionGradients",
    "DecoderBlockGradients",
    "DecoderGradients",
    "EncoderBlockGradients",
    "EncoderGradients",
    "FeedForwardGradients",
    "Model",
    "MultiHeadAttentionGradients",
    "NormGradients",
    "TransformerGradients",
    "attention",
    "attention_logsumexp",
    "attention_logsumexp_vjp",
    "attention_vjp",
    "attention_weights",
    "attention_weights_vjp",
    "beam_search",
    "choose",
    "classifier",
    "classifier_vjp",
    "decode_step",
    "decoder",
    "decoder_block",
    "decoder_block_vjp",
    "decoder_vjp",
    "embed",
    "embed_vjp",
    "embedding",
    "embedding_vjp",
    "encoder",
    "encoder_block",
    "encoder_block_vjp",
    "encoder_vjp",
    "feed_forward",
    "feed_forward_vjp",
    "greedy",
    "language_model",
    "language_model_vjp",
    "layer_norm",
    "layer_norm_vjp",
    "learned_positions",
    "learned_positions_vjp",
    "load",
    "materialize",
    "merge_attention",
    "merge_attention_vjp",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "plain_self_attention",
    "pool",
    "pool_vjp",
    "restore",
    "rms_norm",
    "rms_norm_vjp",
    "sample",
    "save",
    "sinusoidal_positions",
    "standard_deviation_norm",
    "standard_deviation_norm_vjp",
    "start",
    "transformer",
    "transformer_vjp",
]
