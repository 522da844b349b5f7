"""Everything random of a run but its numbers, drawn with NumPy by seed and step."""

from __future__ import annotations

import numpy as np

from reference_numpy import xavier_uniform
from specification.dropout import (
    DecoderBlockDropout,
    Dropout,
    EncoderBlockDropout,
    StackDropout,
    SublayerDropout,
    TransformerDropout,
)
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)
from training.drawing import KEEP, WEIGHTS, generator
from training.task import Batch
from training.translation.settings import Settings


def initial_weights(settings: Settings, source: int, target: int) -> Transformer:
    """Draw parameters: Xavier's uniform numbers for projections, normal ones of deviation E^-0.5 for the tables.

    source, target: sizes of the vocabularies.
    """
    draw, dtype = generator(settings.seed, WEIGHTS), np.dtype(settings.dtype)
    E, F = settings.width, settings.inner

    def linear(inner: int, outer: int) -> Linear:
        return Linear(xavier_uniform(draw.random((inner, outer), np.float32).astype(dtype)), np.zeros(outer, dtype))

    def norm() -> Norm:
        return Norm(np.ones(E, dtype), np.zeros(E, dtype))

    def attention() -> tuple[MultiHeadAttention, Norm]:
        return MultiHeadAttention(linear(E, E), linear(E, E), linear(E, E), linear(E, E)), norm()

    def feed_forward() -> tuple[FeedForward, Norm]:
        return FeedForward(linear(E, F), linear(F, E)), norm()

    def table(rows: int) -> Embedding:
        return Embedding((draw.standard_normal((rows, E)) / np.sqrt(E)).astype(dtype))

    blocks = [EncoderBlock(*attention(), *feed_forward()) for _ in range(settings.depth)]
    others = [DecoderBlock(*attention(), *attention(), *feed_forward()) for _ in range(settings.depth)]
    return Transformer(Encoder(table(source), blocks), Decoder(table(target), others), linear(E, target))


def dropout(settings: Settings, batch: Batch, step: int) -> TransformerDropout | None:
    """Draw keep masks [B, T, E] where the paper drops (section 5.4): behind embeddings, and every sublayer."""
    rate = settings.dropout
    if rate == 0:
        return None
    draw = generator(settings.seed, KEEP, step)
    source, target = ((*tokens.shape, settings.width) for tokens in batch.inputs)

    def sublayer(shape: tuple[int, ...]) -> SublayerDropout:
        return SublayerDropout(output=site(shape))

    def site(shape: tuple[int, ...]) -> Dropout:
        return Dropout(draw.random(shape, np.float32) >= rate, rate)

    up = [EncoderBlockDropout(sublayer(source), sublayer(source)) for _ in range(settings.depth)]
    down = [DecoderBlockDropout(*(sublayer(target) for _ in range(3))) for _ in range(settings.depth)]
    return TransformerDropout(StackDropout(site(source), up), StackDropout(site(target), down))
