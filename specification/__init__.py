"""What is not numerics, said once for all three implementations.

Mask descriptions, parameter structures, the rules of SPEC.md as data, and the checks on arguments that give the same
error for the same mistake everywhere. Nothing here computes with floating-point numbers.
"""

from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Mask, Or, Segments, SlidingWindow
from specification.parameters import FeedForward, Linear, MultiHeadAttention
from specification.rules import RULES, Rule

__all__ = [
    "RULES",
    "And",
    "Causal",
    "Dense",
    "FeedForward",
    "KeyLengths",
    "KeyPadding",
    "Linear",
    "Mask",
    "MultiHeadAttention",
    "Or",
    "Rule",
    "Segments",
    "SlidingWindow",
]
