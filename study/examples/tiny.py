"""Models small enough to look at every number: width 4, two heads, five tokens."""

from __future__ import annotations

import numpy as np

from specification import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)

WIDTH, HEADS, INNER, VOCABULARY = 4, 2, 4, 5


class Maker:
    """Parameters drawn with a seed, one decimal each."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def array(self, *shape: int, mean: float = 0.0) -> np.ndarray:
        drawn = (mean + self.generator.uniform(-1, 1, shape)).round(1)
        return (drawn + 0.0).astype(np.float32)  # -0.0 + 0.0 is 0.0

    def linear(self, inner: int, outer: int) -> Linear:
        return Linear(self.array(inner, outer), self.array(outer))

    def norm(self) -> Norm:
        return Norm(self.array(WIDTH, mean=1.5), self.array(WIDTH))

    def attention(self) -> MultiHeadAttention:
        query, key, value, output = (self.linear(WIDTH, WIDTH) for _ in range(4))
        return MultiHeadAttention(query, key, value, output)

    def feed_forward(self) -> FeedForward:
        return FeedForward(self.linear(WIDTH, INNER), self.linear(INNER, WIDTH))

    def embedding(self) -> Embedding:
        return Embedding(self.array(VOCABULARY, WIDTH))

    def encoder_block(self) -> EncoderBlock:
        return EncoderBlock(self.attention(), self.norm(), self.feed_forward(), self.norm())

    def decoder_block(self, cross: bool = True) -> DecoderBlock:
        middle, middle_norm = (self.attention(), self.norm()) if cross else (None, None)
        return DecoderBlock(self.attention(), self.norm(), middle, middle_norm, self.feed_forward(), self.norm())

    def transformer(self) -> Transformer:
        encoder = Encoder(self.embedding(), [self.encoder_block()])
        return Transformer(encoder, Decoder(self.embedding(), [self.decoder_block()]), self.linear(WIDTH, VOCABULARY))

    def language_model(self) -> LanguageModel:
        return LanguageModel(
            Decoder(self.embedding(), [self.decoder_block(cross=False)]), self.linear(WIDTH, VOCABULARY)
        )
