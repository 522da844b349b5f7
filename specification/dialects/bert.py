"""bert: the encoder of any BERT checkpoint with Hugging Face's names.

What stands on top of the encoder (pooler, heads for pretraining) is part of the file and not of the hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration
from specification.dialects.reading import Reader
from specification.parameters import Embedding, Encoder, EncoderBlock, MultiHeadAttention


def bert(
    state_dict: Mapping[str, Any],
    *,
    num_heads: int,
    eps: float = 1e-12,
    activation: str = "gelu",
    empty_rows: str = "zero",
) -> tuple[Encoder, Configuration]:
    """eps and activation: layer_norm_eps and hidden_act of the checkpoint's configuration.

    empty_rows: where a whole sequence is padding, transformers 5.23 gives what "zero" says with its default attention,
    and with attn_implementation="eager" what "mean" does.
    """
    renamed = {old: old.replace(".gamma", ".weight").replace(".beta", ".bias") for old in state_dict}
    twice = sorted(old for old, new in renamed.items() if old != new and new in state_dict)
    if twice:
        raise ValueError(f"the checkpoint does not fit: {', '.join(twice)} beside the newer names for the same")
    read = Reader({renamed[old]: array for old, array in state_dict.items()}, prefix="bert.")
    read.ignore(r"(pooler|cls|classifier|qa_outputs)\..*")

    def block(name: str) -> EncoderBlock:
        parts = [read.linear(f"{name}.attention.self.{part}", "E", "E") for part in ("query", "key", "value")]
        return EncoderBlock(
            MultiHeadAttention._make([*parts, read.linear(f"{name}.attention.output.dense", "E", "E")]),
            read.norm(f"{name}.attention.output.LayerNorm"),
            read.feed_forward(f"{name}.intermediate.dense", f"{name}.output.dense"),
            read.norm(f"{name}.output.LayerNorm"),
        )

    embedding = Embedding(
        read.take("embeddings.word_embeddings.weight", "vocabulary", "E"),
        read.take("embeddings.position_embeddings.weight", "positions", "E"),
        read.take("embeddings.token_type_embeddings.weight", "token types", "E"),
        read.norm("embeddings.LayerNorm"),
    )
    blocks = [block(f"encoder.layer.{i}") for i in range(read.count(r"encoder\.layer\.(\d+)\."))]
    read.heads(num_heads)
    read.finish()
    return Encoder(embedding, blocks), Configuration(
        num_heads=num_heads, norm_eps=eps, activation=activation, empty_rows=empty_rows, positions="learned"
    )
