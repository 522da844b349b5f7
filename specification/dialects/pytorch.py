"""pytorch: the state dicts of `torch.nn.Transformer`, of its encoder and decoder alone, and of `nn.MultiheadAttention`.

Which of them it is follows from the names, and whether there are biases too. They take embeddings, not tokens, and
their caller gives all masks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.dialects.reading import Reader
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)

LAST_NORM = r"((encoder|decoder)\.)?norm\.bias"


def pytorch(
    state_dict: Mapping[str, Any],
    *,
    num_heads: int,
    norm_first: bool = False,
    activation: str = "relu",
    eps: float = 1e-5,
    empty_rows: str = "zero",
) -> tuple[Transformer | Encoder | Decoder | MultiHeadAttention, Configuration]:
    """Hyperparameters as the modules have them; eps is their layer_norm_eps.

    empty_rows: what a position gets that may attend to nothing. PyTorch 2.13 gives what "zero" says, in its stacks and
    with need_weights=False; what "nan" says in `nn.MultiheadAttention` as it is by default, with need_weights=True; and
    in evaluation without gradients, where its modules take a faster path, 0 or NaN for the whole position.

    A single layer is read as an encoder or a decoder of one block. bias_k and bias_v are not supported.
    """
    read = Reader(state_dict)
    bias = any(name.endswith("bias") and not re.fullmatch(LAST_NORM, name) for name in read.entries)

    def norm(name: str) -> Norm:
        return read.norm(name, bias=bias)

    def last_norm(name: str) -> Norm | None:
        """A module of its own, given by the caller, with a bias or without; in an nn.Transformer both stacks alike."""
        alike = ("norm",) if name == "norm" else ("encoder.norm", "decoder.norm")
        there = {part for part in ("weight", "bias") for stack in alike if read.has(f"{stack}.{part}")}
        if there == {"weight"} and bias:
            told = "has no bias, as an nn.RMSNorm or a layer norm without one: it is taken for a layer norm"
            read.warnings.append(f"{name} {told}")
        return read.norm(name, bias="bias" in there) if there else None

    def feed_forward(name: str) -> FeedForward:
        return read.feed_forward(f"{name}linear1", f"{name}linear2", bias=bias)

    def encoder_block(name: str) -> EncoderBlock:
        own = attention(read, f"{name}self_attn.", bias), norm(f"{name}norm1")
        return EncoderBlock(*own, feed_forward(name), norm(f"{name}norm2"))

    def decoder_block(name: str) -> DecoderBlock:
        own = attention(read, f"{name}self_attn.", bias), norm(f"{name}norm1")
        cross = attention(read, f"{name}multihead_attn.", bias), norm(f"{name}norm2")
        return DecoderBlock(*own, *cross, feed_forward(name), norm(f"{name}norm3"))

    def names(prefix: str) -> list[str]:
        if read.has(f"{prefix}self_attn.out_proj.weight"):
            return [prefix]
        return [f"{prefix}layers.{i}." for i in range(read.count(rf"{re.escape(prefix)}layers\.(\d+)\."))]

    def encoder(prefix: str) -> Encoder:
        return Encoder(None, [encoder_block(name) for name in names(prefix)], last_norm(f"{prefix}norm"))

    def decoder(prefix: str) -> Decoder:
        return Decoder(None, [decoder_block(name) for name in names(prefix)], last_norm(f"{prefix}norm"))

    parameters: Any
    if read.has("out_proj.weight"):
        parameters = attention(read, "", bias)
    elif any(name.startswith(("encoder.", "decoder.")) for name in read.entries):
        parameters = Transformer(encoder("encoder."), decoder("decoder."))
    elif any("multihead_attn." in name for name in read.entries):
        parameters = decoder("")
    else:
        parameters = encoder("")
    read.heads(num_heads)
    read.finish()
    return parameters, Configuration(
        num_heads=num_heads,
        norm_order="pre" if norm_first else "post",
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="none",
        target_mask="none",
    )


def attention(read: Reader, prefix: str, bias: bool) -> MultiHeadAttention:
    """One [3 E, E] matrix where keys and values are as wide as queries, else three."""
    if read.has(f"{prefix}q_proj_weight"):
        inputs = (("q", "E"), ("k", "key width"), ("v", "value width"))
        weights = [read.take(f"{prefix}{name}_proj_weight", "E", width) for name, width in inputs]
    else:
        output = read.entries.get(f"{prefix}out_proj.weight")
        if output is not None and output.ndim == 2 and output.size:
            read.sizes.setdefault("E", output.shape[0])
        weights = read.thirds(f"{prefix}in_proj_weight", "3 E", "E")
    biases = read.thirds(f"{prefix}in_proj_bias", "3 E") if bias else [None] * 3
    parts = [Linear(None if w is None else w.T, b) for w, b in zip(weights, biases, strict=True)]
    return MultiHeadAttention._make([*parts, read.linear(f"{prefix}out_proj", "E", "E", bias=bias)])
