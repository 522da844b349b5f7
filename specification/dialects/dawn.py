"""dawn: an encoder-decoder in which a padded target position, as a query, may attend to nothing.

Forbidden scores are filled with -1e9, so such a position takes the mean of all values. Padding is id 0 on both sides.
The tutorial names its input block without giving it; here that is an embedding, with sinusoidal positions added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.dialects.reading import Reader
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    Transformer,
)


def dawn(state_dict: Mapping[str, Any], *, num_heads: int) -> tuple[Transformer, Configuration]:
    read = Reader(state_dict)

    def attention(name: str) -> MultiHeadAttention:
        return read.attention(name, "W_q", "W_k", "W_v", "W_o")

    def feed_forward(name: str) -> FeedForward:
        return read.feed_forward(f"{name}.sq.0", f"{name}.sq.2")

    def encoder_block(name: str) -> EncoderBlock:
        own = attention(f"{name}.mha"), read.norm(f"{name}.add_norm1.norm")
        return EncoderBlock(*own, feed_forward(f"{name}.ff"), read.norm(f"{name}.add_norm2.norm"))

    def decoder_block(name: str) -> DecoderBlock:
        own = attention(f"{name}.mha"), read.norm(f"{name}.add_and_norm1.norm")
        cross = attention(f"{name}.cross_mha"), read.norm(f"{name}.add_and_norm2.norm")
        return DecoderBlock(*own, *cross, feed_forward(f"{name}.ff"), read.norm(f"{name}.add_and_norm3.norm"))

    depths = [read.count(rf"{stack}\.(\d+)\.") for stack in ("encs", "decs")]
    parameters = Transformer(
        Encoder(
            Embedding(read.take("src_embed.embed.weight", "source vocabulary", "E")),
            [encoder_block(f"encs.{i}") for i in range(depths[0])],
        ),
        Decoder(
            Embedding(read.take("tgt_embed.embed.weight", "target vocabulary", "E")),
            [decoder_block(f"decs.{i}") for i in range(depths[1])],
        ),
        read.linear("fc", "E", "outputs"),
    )
    read.heads(num_heads)
    read.finish()
    return parameters, Configuration(
        num_heads=num_heads,
        empty_rows="mean",
        positions="sinusoidal",
        source_padding=0,
        target_padding=0,
        target_mask="causal and real queries",
    )
