"""The port to JAX: the definition's functions on `jax.Array`, under `jax.jit`, `jax.vmap` and `jax.grad`.

Read in this order: masks, attention_steps, attention, multi_head_attention, layer_norm_steps, layer_norm, embedding,
positions, rotary, latent_attention, feed_forward, experts, blocks, transformer, decoding, generation, models, losses,
optimizers, schedules, initializers. `engines/` holds a faster way to the results of `attention`, and has not to be
read. The definition, `reference_numpy`, holds the full statement of each operation; here stands what is particular to
JAX. Gradients come from `jax.grad`, and reverse mode may be nested; attention has no forward mode (`jax.jvp`,
`jax.jacfwd`, `jax.hessian`).
"""

import typing as _typing

from jax_impl.attention import *
from jax_impl.blocks import *
from jax_impl.embedding import *
from jax_impl.engines.choice import *
from jax_impl.experts import *
from jax_impl.feed_forward import *
from jax_impl.latent_attention import *
from jax_impl.layer_norm import *
from jax_impl.losses import *
from jax_impl.masks import *
from jax_impl.multi_head_attention import *
from jax_impl.positions import *
from jax_impl.rotary import *
from jax_impl.transformer import *
from specification.exports import LAZY_MODULES as _LAZY_MODULES
from specification.exports import lazy_names as _lazy_names
from specification.exports import public_names as _public_names

if _typing.TYPE_CHECKING:
    from jax_impl.decoding import *
    from jax_impl.generation import *
    from jax_impl.initializers import *
    from jax_impl.models import *
    from jax_impl.optimizers import *
    from jax_impl.schedules import *

_lazy, __getattr__ = _lazy_names(__name__, _LAZY_MODULES)
__all__ = sorted([*_public_names(globals()), *_lazy])
