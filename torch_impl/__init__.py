"""The definition in PyTorch, for CPU and CUDA; gradients by autograd.

Read in this order, beside the files of the same names in `reference_numpy`: masks, attention_steps, attention,
multi_head_attention, layer_norm_steps, layer_norm, embedding, positions, feed_forward, blocks, transformer, decoding,
generation, models. `engines/` holds faster ways to the same results, and has not to be read. Everything works under
`torch.compile(fullgraph=True)`, `torch.autograd` (twice, too), `torch.func.grad`, `vjp` and `vmap`, and keeps its
precision under `torch.autocast`. Forward-mode differentiation is not offered: `torch.compile` refuses functions that
have it.
"""

from torch_impl.attention import attention, attention_logsumexp, attention_weights, merge_attention
from torch_impl.blocks import decoder_block, encoder_block
from torch_impl.decoding import decode_step, start
from torch_impl.embedding import embedding
from torch_impl.engines.choice import explain_engine, explain_layer_norm_engine
from torch_impl.feed_forward import feed_forward
from torch_impl.generation import beam_search, choose, greedy, sample
from torch_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from torch_impl.masks import materialize
from torch_impl.models import Model, load, plain_self_attention, restore, save
from torch_impl.multi_head_attention import multi_head_attention
from torch_impl.positions import learned_positions, sinusoidal_positions
from torch_impl.transformer import classifier, decoder, embed, encoder, language_model, pool, transformer

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
    "explain_layer_norm_engine",
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
