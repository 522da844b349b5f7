"""What is not numerics, said once for all three implementations.

Mask descriptions, parameter structures, the rules of SPEC.md as data, and the checks on arguments that give the same
error for the same mistake everywhere. Nothing here computes with floating-point numbers.
"""

from specification.configuration import *
from specification.exports import public_names as _public_names
from specification.masks import *
from specification.parameters import *
from specification.rotary import *
from specification.routing import *
from specification.rules import *

__all__ = _public_names(globals())
