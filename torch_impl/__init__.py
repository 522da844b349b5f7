"""The definition in PyTorch, for CPU and CUDA; gradients by autograd.

Read in this order, beside the files of the same names in `reference_numpy`: masks, attention_steps, attention,
multi_head_attention, layer_norm_steps, layer_norm, embedding, positions, rotary, latent_attention, feed_forward,
experts, blocks, transformer, decoding, generation, models, losses, optimizers, schedules, initializers. `engines/`
holds faster ways to the same results, and has not to be read. Everything works under `torch.compile(fullgraph=True)`,
and all but optimizers under `torch.autograd` (twice, too), `torch.func.grad`, `vjp` and `vmap`. It keeps its precision
under `torch.autocast`. Forward-mode differentiation is not offered: `torch.compile` refuses functions that have it.
"""

import typing as _typing

from specification.exports import LAZY_MODULES as _LAZY_MODULES
from specification.exports import lazy_names as _lazy_names
from specification.exports import public_names as _public_names
from torch_impl.attention import *
from torch_impl.blocks import *
from torch_impl.embedding import *
from torch_impl.engines.choice import *
from torch_impl.experts import *
from torch_impl.feed_forward import *
from torch_impl.latent_attention import *
from torch_impl.layer_norm import *
from torch_impl.losses import *
from torch_impl.masks import *
from torch_impl.multi_head_attention import *
from torch_impl.positions import *
from torch_impl.rotary import *
from torch_impl.transformer import *

if _typing.TYPE_CHECKING:
    from torch_impl.decoding import *
    from torch_impl.generation import *
    from torch_impl.initializers import *
    from torch_impl.models import *
    from torch_impl.optimizers import *
    from torch_impl.schedules import *

_lazy, __getattr__ = _lazy_names(__name__, _LAZY_MODULES | {"optimizers": ("Adam", *_LAZY_MODULES["optimizers"])})
__all__ = sorted([*_public_names(globals()), *_lazy])
