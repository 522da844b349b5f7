"""prenorm-blog: a pre-norm encoder-decoder with its own norm and its own reading of the sinusoids.

The norm divides by the unbiased deviation plus eps. In the positions column c has an angle of its own, with 2c where
the paper has 2i. Embeddings are multiplied by sqrt(E). Forbidden scores are filled with -1e9, so a row without allowed
keys takes the mean of all values.

Its multi-head attention made of heads with their own key and value widths is told by its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.dialects.reading import Reader
from specification.dialects.transformer101 import per_head
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    Norm,
    Transformer,
)


def prenorm_blog(
    state_dict: Mapping[str, Any],
    *,
    num_heads: int | None = None,
    source_pad: int | None = None,
    target_pad: int | None = None,
) -> tuple[Transformer | MultiHeadAttention, Configuration]:
    """num_heads is needed for the encoder-decoder; separate heads take no hyperparameters.

    Without a padding id nothing is masked as padding.
    """
    read = Reader(state_dict)
    if read.has("linear.weight"):
        given = {"num_heads": num_heads, "source_pad": source_pad, "target_pad": target_pad}
        surplus = [name for name, value in given.items() if value is not None]
        if surplus:
            raise TypeError(f"a prenorm-blog checkpoint of separate heads takes no {', '.join(surplus)}")
        return per_head(read, "linear")
    if num_heads is None:
        raise TypeError("prenorm-blog needs num_heads")

    def norm(name: str) -> Norm:
        return read.norm(name, names=("alpha", "bias"))

    def attention(name: str) -> MultiHeadAttention:
        return read.attention(name, "q_linear", "k_linear", "v_linear", "out")

    def feed_forward(name: str) -> FeedForward:
        return read.feed_forward(f"{name}.linear_1", f"{name}.linear_2")

    def encoder_block(name: str) -> EncoderBlock:
        return EncoderBlock(
            attention(f"{name}.attn"), norm(f"{name}.norm_1"), feed_forward(f"{name}.ff"), norm(f"{name}.norm_2")
        )

    def decoder_block(name: str) -> DecoderBlock:
        own = attention(f"{name}.attn_1"), norm(f"{name}.norm_1")
        cross = attention(f"{name}.attn_2"), norm(f"{name}.norm_2")
        return DecoderBlock(*own, *cross, feed_forward(f"{name}.ff"), norm(f"{name}.norm_3"))

    depths = [read.count(rf"{stack}\.layers\.(\d+)\.") for stack in ("encoder", "decoder")]
    parameters = Transformer(
        Encoder(
            Embedding(read.take("encoder.embed.embed.weight", "source vocabulary", "E")),
            [encoder_block(f"encoder.layers.{i}") for i in range(depths[0])],
            norm("encoder.norm"),
        ),
        Decoder(
            Embedding(read.take("decoder.embed.embed.weight", "target vocabulary", "E")),
            [decoder_block(f"decoder.layers.{i}") for i in range(depths[1])],
            norm("decoder.norm"),
        ),
        read.linear("out", "E", "outputs"),
    )
    read.heads(num_heads)
    read.padding("source_pad", source_pad, "source vocabulary")
    read.padding("target_pad", target_pad, "target vocabulary")
    read.finish()
    return parameters, Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm="standard_deviation_norm",
        norm_eps=1e-6,
        empty_rows="mean",
        positions="doubled",
        scaled_embedding=True,
        source_padding=source_pad,
        target_padding=target_pad,
        target_mask="causal" if target_pad is None else "causal and real keys",
    )
