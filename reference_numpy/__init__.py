"""The definition: what a Transformer computes, in NumPy, to be read.

Read in this order: masks, attention_steps, attention, multi_head_attention, layer_norm_steps, layer_norm, embedding,
positions, rotary, latent_attention, feed_forward, experts, blocks, transformer, decoding, generation, models, losses,
optimizers, schedules, initializers. Beside each file that has gradients stands the one with these, `<name>_vjp`: of
operations by hand, of blocks and models by tape.
"""

import typing as _typing

from reference_numpy.attention import *
from reference_numpy.attention_vjp import *
from reference_numpy.blocks import *
from reference_numpy.blocks_vjp import *
from reference_numpy.embedding import *
from reference_numpy.embedding_vjp import *
from reference_numpy.experts import *
from reference_numpy.experts_vjp import *
from reference_numpy.feed_forward import *
from reference_numpy.feed_forward_vjp import *
from reference_numpy.latent_attention import *
from reference_numpy.latent_attention_vjp import *
from reference_numpy.layer_norm import *
from reference_numpy.layer_norm_vjp import *
from reference_numpy.losses import *
from reference_numpy.losses_vjp import *
from reference_numpy.masks import *
from reference_numpy.multi_head_attention import *
from reference_numpy.multi_head_attention_vjp import *
from reference_numpy.positions import *
from reference_numpy.positions_vjp import *
from reference_numpy.rotary import *
from reference_numpy.rotary_vjp import *
from reference_numpy.transformer import *
from reference_numpy.transformer_vjp import *
from specification.exports import LAZY_MODULES as _LAZY_MODULES
from specification.exports import lazy_names as _lazy_names
from specification.exports import public_names as _public_names

if _typing.TYPE_CHECKING:
    from reference_numpy.decoding import *
    from reference_numpy.generation import *
    from reference_numpy.initializers import *
    from reference_numpy.models import *
    from reference_numpy.optimizers import *
    from reference_numpy.schedules import *

_lazy, __getattr__ = _lazy_names(__name__, _LAZY_MODULES)
__all__ = sorted([*_public_names(globals()), *_lazy])
