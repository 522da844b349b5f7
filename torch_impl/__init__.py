"""The definition in PyTorch, for CPU and CUDA; gradients by autograd.

Read in this order, beside the files of the same names in `reference_numpy`: masks, attention, layer_norm, embedding,
positions, feed_forward. Everything works under `torch.compile(fullgraph=True)`, `torch.autograd` (twice, too),
`torch.func.grad`, `vjp` and `vmap`, and keeps its precision under `torch.autocast`. Forward-mode differentiation is not
offered: `torch.compile` refuses functions that have it.
"""

from torch_impl.attention import (
    attention,
    attention_logsumexp,
    attention_weights,
    merge_attention,
    multi_head_attention,
)
from torch_impl.embedding import embedding
from torch_impl.feed_forward import feed_forward
from torch_impl.layer_norm import layer_norm, rms_norm, standard_deviation_norm
from torch_impl.masks import materialize
from torch_impl.positions import learned_positions, sinusoidal_positions

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
