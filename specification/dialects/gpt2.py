"""gpt2: any GPT-2 checkpoint with Hugging Face's names.

Its projections are stored [in, out]. Where the file has no output layer of its own, that is the token table turned.
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
    FeedForward,
    LanguageModel,
    Linear,
    MultiHeadAttention,
)


def gpt2(
    state_dict: Mapping[str, Any],
    *,
    num_heads: int,
    eps: float = 1e-5,
    activation: str = "gelu_tanh",
    empty_rows: str = "zero",
) -> tuple[LanguageModel, Configuration]:
    """eps and activation: layer_norm_epsilon and activation_function of the checkpoint's configuration.

    empty_rows: what a position gets that may attend to nothing, as padding before the first token. transformers 5.23
    gives what "zero" says with its default attention, and with attn_implementation="eager" what "mean" does.
    """
    read = Reader(state_dict, prefix="transformer.")
    read.ignore(r"h\.\d+\.attn\.(bias|masked_bias)")  # tables of who attends to whom
    embedding = Embedding(read.take("wte.weight", "vocabulary", "E"), read.take("wpe.weight", "positions", "E"))

    def linear(name: str, inner: str | int, outer: str | int) -> Linear:
        return Linear(read.take(f"{name}.weight", inner, outer), read.take(f"{name}.bias", outer))

    def block(name: str) -> DecoderBlock:
        weights = read.thirds(f"{name}.attn.c_attn.weight", "E", "3 E")
        biases = read.thirds(f"{name}.attn.c_attn.bias", "3 E")
        parts = [Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        own = MultiHeadAttention._make([*parts, linear(f"{name}.attn.c_proj", "E", "E")]), read.norm(f"{name}.ln_1")
        forward = FeedForward(linear(f"{name}.mlp.c_fc", "E", "F"), linear(f"{name}.mlp.c_proj", "F", "E"))
        return DecoderBlock(*own, None, None, forward, read.norm(f"{name}.ln_2"))

    blocks = [block(f"h.{i}") for i in range(read.count(r"h\.(\d+)\."))]
    decoder = Decoder(embedding, blocks, read.norm("ln_f"))
    if read.has("lm_head.weight"):
        output = read.linear("lm_head", "E", "vocabulary", bias=False)
    else:
        output = Linear(None if embedding.tokens is None else embedding.tokens.T.copy())
    read.heads(num_heads)
    read.finish()
    return LanguageModel(decoder, output), Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="learned",
        target_mask="causal",
    )
