"""Everything random of a run, drawn once with NumPy by seed and step, so that every package can be given the same.

A run that is resumed draws what an undisturbed one draws: nothing depends on what was drawn before.
"""

from __future__ import annotations

import numpy as np

from reference_numpy import embedding_default, linear_default
from specification.dropout import Dropout, EncoderBlockDropout, StackDropout, SublayerDropout
from specification.parameters import (
    Classifier,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    Linear,
    MultiHeadAttention,
    Norm,
    mapped,
)
from training.reviews import LABELS
from training.settings import Settings

WEIGHTS, ORDER, KEEP, NUMBERS = range(4)
"""What a generator is for."""
POOL = 50
"""Batches among which texts are sorted by length."""


def generator(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """A generator of its own for every purpose and place in the run."""
    return np.random.default_rng([seed, purpose, *place])


def initial_weights(settings: Settings, vocabulary: int) -> Classifier:
    """Draw the parameters that PyTorch's defaults would give to the tutorial's modules.

    vocabulary: the number of its entries.
    """
    draw = generator(settings.seed, WEIGHTS)
    E = settings.width

    def linear(inner: int, outer: int, bias: bool = True) -> Linear:
        weight, offset = draw.random((inner, outer)), draw.random(outer)
        return linear_default(weight, offset if bias else None)

    def table(rows: int) -> np.ndarray:
        return embedding_default(draw.standard_normal((rows, E))) * settings.spread

    def block() -> EncoderBlock:
        query, key, value = (linear(E, E, bias=False) for _ in range(3))
        attention, norm = MultiHeadAttention(query, key, value, linear(E, E)), Norm(np.ones(E), np.zeros(E))
        return EncoderBlock(attention, norm, FeedForward(linear(E, 4 * E), linear(4 * E, E)), norm)

    embedding = Embedding(table(vocabulary), table(settings.longest))
    blocks = [block() for _ in range(settings.depth)]
    made = Classifier(Encoder(embedding, blocks), linear(E, len(LABELS)))
    return mapped(lambda array: array.astype(settings.dtype), made)


def order(lengths: np.ndarray, batch: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Deal texts out into batches of similar lengths, in random order: the places of each batch's texts.

    batch: how many texts it has; the last one of the shuffled texts may have fewer.
    """
    draw = generator(seed, ORDER, epoch)
    shuffled = draw.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(lengths), POOL * batch):
        pool = shuffled[start : start + POOL * batch]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[at : at + batch] for at in range(0, len(pool), batch)]
    return [batches[place] for place in draw.permutation(len(batches))]


def dropout(settings: Settings, tokens: np.ndarray, step: int) -> StackDropout | None:
    """Draw keep masks [B, T, E] where the tutorial drops: behind the embedding, and both norms of every block."""
    rate = settings.dropout
    if rate == 0:
        return None
    draw = generator(settings.seed, KEEP, step)

    def site() -> Dropout:
        return Dropout(draw.random((*tokens.shape, settings.width), np.float32) >= rate, rate)

    embedding = site()
    blocks = [[SublayerDropout(norm=site()) for _ in range(2)] for _ in range(settings.depth)]
    return StackDropout(embedding, [EncoderBlockDropout(*sublayers) for sublayers in blocks])
