"""Checks on arguments: the same error, with the same words, for the same mistake in all three implementations.

Everything here looks at shapes, dtypes and plain numbers only, which are known even while a framework is tracing. What
depends on values (`mask_values`, `ids_within`, `targets_within`) takes them as NumPy arrays, and an implementation
calls it when it can read them.
"""

from specification.checks.arguments import *
from specification.checks.distributed import *
from specification.checks.experts import *
from specification.checks.generation import *
from specification.checks.latent_attention import *
from specification.checks.losses import *
from specification.checks.masks import *
from specification.checks.operations import *
from specification.checks.optimizers import *
from specification.checks.rotary import *
from specification.checks.sites import *
from specification.exports import public_names as _public_names

__all__ = _public_names(globals())
