"""Where dropout may act in a model (BLK-2), as structures that hold the keep masks which the caller has drawn.

A site that is None drops nothing, so evaluation is the absence of all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Dropout(NamedTuple):
    """One site: x * keep / (1 - rate), keep boolean in the shape of x.

    Two in a row are one: keep_1 & keep_2, with rate 1 - (1 - rate_1) * (1 - rate_2).
    """

    keep: Any
    rate: float


class SublayerDropout(NamedTuple):
    """The sites of one sublayer and its residual connection.

    inner: attention's weights [B, H, T, S] after the softmax, or the feed-forward network's activations [B, T, F].
    output: what the sublayer gives [B, T, E], before it is added to its input. norm: what the norm gives [B, T, E].
    """

    inner: Dropout | None = None
    output: Dropout | None = None
    norm: Dropout | None = None


class EncoderBlockDropout(NamedTuple):
    """The sites of an encoder block."""

    attention: SublayerDropout = SublayerDropout()
    feed_forward: SublayerDropout = SublayerDropout()


class DecoderBlockDropout(NamedTuple):
    """The sites of a decoder block."""

    self_attention: SublayerDropout = SublayerDropout()
    cross_attention: SublayerDropout = SublayerDropout()
    feed_forward: SublayerDropout = SublayerDropout()


class StackDropout(NamedTuple):
    """Of an encoder or a decoder: embedding [B, T, E], and one structure for every block, or () for none in any."""

    embedding: Dropout | None = None
    blocks: Any = ()


class TransformerDropout(NamedTuple):
    """The sites of an encoder and a decoder."""

    encoder: StackDropout = StackDropout()
    decoder: StackDropout = StackDropout()
