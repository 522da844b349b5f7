"""notebook-scratch: an encoder-decoder that divides scores by sqrt(E) and fills forbidden ones with -1e20.

Every forbidden score is the same finite number, so a row without allowed keys takes the mean of all values. The
target's padding is not masked.
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
    MultiHeadAttention,
    Transformer,
)


def notebook_scratch(
    state_dict: Mapping[str, Any], *, num_heads: int, source_pad: int, target_pad: int | None = None
) -> tuple[Transformer, Configuration]:
    """target_pad is taken and not used, as in the tutorial."""
    read = Reader(state_dict)

    def attention(name: str) -> MultiHeadAttention:
        return read.attention(name, "queries", "keys", "values", "fc_out")

    def encoder_block(name: str) -> EncoderBlock:
        return EncoderBlock(
            attention(f"{name}.attention"),
            read.norm(f"{name}.norm1"),
            read.feed_forward(f"{name}.feed_forward.0", f"{name}.feed_forward.2"),
            read.norm(f"{name}.norm2"),
        )

    def decoder_block(name: str) -> DecoderBlock:
        cross = encoder_block(f"{name}.transformer_block")  # attention to the encoder's output, not to itself
        return DecoderBlock(attention(f"{name}.attention"), read.norm(f"{name}.norm"), *cross)

    def embedding(name: str, vocabulary: str, positions: str) -> Embedding:
        words = read.take(f"{name}.word_embedding.weight", vocabulary, "E")
        return Embedding(words, read.take(f"{name}.position_embedding.weight", positions, "E"))

    depths = [read.count(rf"{stack}\.layers\.(\d+)\.") for stack in ("encoder", "decoder")]
    parameters = Transformer(
        Encoder(
            embedding("encoder", "source vocabulary", "source positions"),
            [encoder_block(f"encoder.layers.{i}") for i in range(depths[0])],
        ),
        Decoder(
            embedding("decoder", "target vocabulary", "target positions"),
            [decoder_block(f"decoder.layers.{i}") for i in range(depths[1])],
        ),
        read.linear("decoder.fc_out", "E", "outputs"),
    )
    read.heads(num_heads)
    read.padding("source_pad", source_pad, "source vocabulary")
    read.padding("target_pad", target_pad, "target vocabulary")
    read.finish()
    return parameters, Configuration(
        num_heads=num_heads,
        scale="model_width",
        empty_rows="mean",
        positions="learned",
        source_padding=source_pad,
        target_padding=target_pad,
        target_mask="causal",
    )
