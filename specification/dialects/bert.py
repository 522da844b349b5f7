"""bert: the encoder of any BERT or RoBERTa checkpoint with Hugging Face's names.

What stands on top of the encoder (pooler, heads for pretraining) is part of the file and not of the hidden states.

RoBERTa, and what is built like it (XLM-RoBERTa, CamemBERT, data2vec's text model), has BERT's names within the encoder,
and other positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration, is_count
from specification.dialects.reading import Reader
from specification.parameters import Embedding, Encoder, EncoderBlock, MultiHeadAttention

PREFIXES = ("bert.", "roberta.", "data2vec_text.")
"""Before the names of the encoder, in files of models with something on top."""


def bert(
    state_dict: Mapping[str, Any],
    *,
    num_heads: int,
    eps: float = 1e-12,
    activation: str = "gelu",
    empty_rows: str = "zero",
    positions: str | None = None,
    padding: int | None = None,
) -> tuple[Encoder, Configuration]:
    """eps and activation: layer_norm_eps and hidden_act of the checkpoint's configuration.

    positions: "learned" as in BERT, which is meant unless given; "after_padding" as in RoBERTa, with padding, the id
    that they skip, pad_token_id of the checkpoint's configuration. It masks nothing: key_padding does.

    empty_rows: where a whole sequence is padding, transformers 5.23 gives what "zero" says with its default attention,
    and with attn_implementation="eager" what "mean" does.
    """
    renamed = {old: old.replace(".gamma", ".weight").replace(".beta", ".bias") for old in state_dict}
    twice = sorted(old for old, new in renamed.items() if old != new and new in state_dict)
    if twice:
        raise ValueError(f"the checkpoint does not fit: {', '.join(twice)} beside the newer names for the same")
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in state_dict)), PREFIXES[0])
    read = Reader({renamed[old]: array for old, array in state_dict.items()}, prefix=prefix)
    read.ignore(r"(pooler|cls|classifier|qa_outputs|lm_head)\..*")

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
    check_positions(read, positions, padding, prefix)
    read.finish()
    return Encoder(embedding, blocks), Configuration(
        num_heads=num_heads,
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="learned" if positions is None else positions,
        position_padding=padding,
    )


def check_positions(read: Reader, positions: Any, padding: Any, prefix: str) -> None:
    """Whose positions these are is not in the entries; what speaks for RoBERTa's without being told so is told."""
    if positions not in (None, "learned", "after_padding"):
        read.problems.append(f"positions must be 'learned' or 'after_padding', got {positions!r}")
    elif (positions == "after_padding") == (padding is None):
        read.problems.append(f"positions={positions!r} {'needs a' if padding is None else 'takes no'} padding")
    read.padding("padding", padding, "vocabulary")
    rows = read.sizes.get("positions")
    if is_count(padding) and rows is not None and padding + 1 >= rows:
        table = "embeddings.position_embeddings.weight"
        read.problems.append(f"{table} has {rows} rows, and positions begin at {padding + 1}")
    if positions is None and prefix != PREFIXES[0]:
        read.problems.append(f"names with {prefix} are of a model whose positions are 'after_padding': give positions")
    elif positions is None and read.sizes.get("token types") == 1:
        read.warnings.append(
            "there is one token type, as in RoBERTa: it needs positions='after_padding' and padding=1; "
            "positions='learned' says that this is a BERT"
        )
