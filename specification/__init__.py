"""What is not numerics, said once for all three implementations.

Mask descriptions, parameter structures, the rules of SPEC.md as data, and the checks on arguments that give the same
error for the same mistake everywhere. Nothing here computes with floating-point numbers.
"""

from specification.configuration import Configuration
from specification.masks import And, Causal, Dense, KeyLengths, KeyPadding, Mask, Or, Segments, SlidingWindow
from specification.parameters import (
    Classifier,
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LanguageModel,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Rotation,
    YarnScaling,
)
from specification.rules import MODEL_RULES, RULES, Rule

__all__ = [
    "MODEL_RULES",
    "RULES",
    "And",
    "Causal",
    "Classifier",
    "Configuration",
    "Decoder",
    "DecoderBlock",
    "Dense",
    "DynamicScaling",
    "Embedding",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "GatedFeedForward",
    "KeyLengths",
    "KeyPadding",
    "LanguageModel",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "MultiHeadAttention",
    "Norm",
    "Or",
    "Rotary",
    "Rotation",
    "Rule",
    "Segments",
    "SlidingWindow",
    "Transformer",
    "YarnScaling",
]
