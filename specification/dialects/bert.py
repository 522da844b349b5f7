"""The encoder of any BERT or RoBERTa checkpoint with Hugging Face's names.

What stands on top of the encoder (pooler, heads for pretraining) is part of the file and not of the hidden states.

RoBERTa, and what is built like it (XLM-RoBERTa, CamemBERT, data2vec's text model), has BERT's names within the encoder,
and other positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specification.configuration import Configuration, is_count
from specification.loading.reader import Reader
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Variant
from specification.loading.table import array, each, feed_forward, linear, norm, table
from specification.parameters import Encoder

PREFIXES = ("bert.", "roberta.", "data2vec_text.")
"""Before the names of the encoder, in files of models with something on top."""

TABLE = table(
    array("embeddings.word_embeddings.weight", "embedding.tokens", "vocabulary", "E"),
    array("embeddings.position_embeddings.weight", "embedding.positions", "positions", "E"),
    array("embeddings.token_type_embeddings.weight", "embedding.token_types", "token types", "E"),
    norm("embeddings.LayerNorm", "embedding.norm"),
    each(
        "encoder.layer.{i}.",
        "blocks.{i}.",
        linear("attention.self.query", "attention.query"),
        linear("attention.self.key", "attention.key"),
        linear("attention.self.value", "attention.value"),
        linear("attention.output.dense", "attention.output"),
        norm("attention.output.LayerNorm", "attention_norm"),
        feed_forward("intermediate.dense", "output.dense"),
        norm("output.LayerNorm", "feed_forward_norm"),
    ),
)


def configuration(
    *,
    num_heads: int,
    eps: float = 1e-12,
    activation: str = "gelu",
    empty_rows: str = "zero",
    positions: str | None = None,
    padding: int | None = None,
) -> Configuration:
    """eps and activation: layer_norm_eps and hidden_act of the checkpoint's configuration.

    positions: "learned" as in BERT, which is meant unless given; "after_padding" as in RoBERTa, with padding, the id
    that they skip, pad_token_id of the checkpoint's configuration. It masks nothing: key_padding does.

    empty_rows: where a whole sequence is padding, transformers 5.23 gives what "zero" says with its default attention,
    and with attn_implementation="eager" what "mean" does.
    """
    return Configuration(
        num_heads=num_heads,
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="learned" if positions is None else positions,
        position_padding=padding,
    )


def check(read: Reader, given: Mapping[str, Any]) -> None:
    """Whose positions these are is not in the entries; what speaks for RoBERTa's without being told so is told."""
    positions, padding = given["positions"], given["padding"]
    if positions not in (None, "learned", "after_padding"):
        read.problems.append(f"positions must be 'learned' or 'after_padding', got {positions!r}")
    elif (positions == "after_padding") == (padding is None):
        read.problems.append(f"positions={positions!r} {'needs a' if padding is None else 'takes no'} padding")
    rows = read.sizes.get("positions")
    if is_count(padding) and rows is not None and padding + 1 >= rows:
        table = "embeddings.position_embeddings.weight"
        read.problems.append(f"{table} has {rows} rows, and positions begin at {padding + 1}")
    if positions is None and read.prefix in PREFIXES[1:]:
        told = f"names with {read.prefix} are of a model whose positions are 'after_padding': give positions"
        read.problems.append(told)
    elif positions is None and read.sizes.get("token types") == 1:
        read.warnings.append(
            "there is one token type, as in RoBERTa: it needs positions='after_padding' and padding=1; "
            "positions='learned' says that this is a BERT"
        )


LIKE_ROBERTA = ("camembert", "data2vec-text", "roberta", "xlm-roberta")
"""Model types with positions "after_padding"."""


def padding_of(told: Mapping[str, Any]) -> Any:
    """Read the id that positions skip; a BERT's skip none."""
    return told["pad_token_id"] if told["model_type"] in LIKE_ROBERTA else None


TOKENS = np.array([[3, 1, 4, 2], [5, 2, 0, 0]])

DIALECT = Dialect(
    name="bert",
    about=__doc__,
    source="Devlin et al., BERT, 2019 (arXiv:1810.04805); Liu et al., RoBERTa, 2019 (arXiv:1907.11692); "
    "`BertModel` and `RobertaModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=Encoder,
            table=TABLE,
            configuration=configuration,
            called_with="tokens, `key_padding`, `token_types`",
            gives="hidden states [B, T, E]",
            padding={"padding": "vocabulary"},
            check=check,
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"tokens": TOKENS},
                options={"key_padding": TOKENS != 0, "token_types": np.array([[0, 0, 1, 1], [0, 1, 0, 0]])},
                about="Token 0 is padding, and masked by key_padding.",
                sizes={"token types": 2},
                unread={"pooler.dense.weight": ("E", "E"), "pooler.dense.bias": ("E",)},
            ),
        ),
    ),
    prefixes=PREFIXES,
    renamed={".gamma": ".weight", ".beta": ".bias"},
    ignored=(r"(pooler|cls|classifier|qa_outputs|lm_head)\..*",),
    config=ConfigFile(
        families={
            "bert": {"positions": "learned"},
            **{family: {"positions": "after_padding"} for family in LIKE_ROBERTA},
        },
        keys={
            "num_heads": "num_attention_heads",
            "eps": "layer_norm_eps",
            "activation": "hidden_act",
            "padding": Computed(("pad_token_id",), padding_of),
        },
        defaults={
            family: {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0 if family == "bert" else 1}
            for family in ("bert", *LIKE_ROBERTA)
        },
        fixed={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
        sizes={
            "hidden_size": "E",
            "intermediate_size": "F",
            "vocab_size": "vocabulary",
            "num_hidden_layers": "i",
            "type_vocab_size": "token types",
            "max_position_embeddings": "positions",
        },
        without_effect=(
            *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
            *("pooler_size_per_head", "pooler_type", "tie_word_embeddings"),
        ),
    ),
)
