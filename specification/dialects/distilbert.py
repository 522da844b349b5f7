"""The encoder of any DistilBERT checkpoint with Hugging Face's names.

It is BERT's encoder without token types and pooler. What stands on top of the encoder (heads for masked tokens, classes
or answers) is part of the file and not of the hidden states.
"""

from __future__ import annotations

import numpy as np

from specification.configuration import Configuration
from specification.loading.record import ConfigFile, Dialect, Example, Variant
from specification.loading.table import array, attention, each, feed_forward, norm, table
from specification.parameters import Encoder

TABLE = table(
    array("embeddings.word_embeddings.weight", "embedding.tokens", "vocabulary", "E"),
    array("embeddings.position_embeddings.weight", "embedding.positions", "positions", "E"),
    norm("embeddings.LayerNorm", "embedding.norm"),
    each(
        "transformer.layer.{i}.",
        "blocks.{i}.",
        attention("attention", "attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        norm("sa_layer_norm", "attention_norm"),
        feed_forward("ffn.lin1", "ffn.lin2"),
        norm("output_layer_norm", "feed_forward_norm"),
    ),
)


def configuration(*, num_heads: int, activation: str = "gelu", empty_rows: str = "zero") -> Configuration:
    """activation: as in the checkpoint's configuration. The eps of all norms is 1e-12, whatever that file says.

    empty_rows: where a whole sequence is padding, transformers 5.23 gives what "zero" says with its default attention,
    and with attn_implementation="eager" what "mean" does.
    """
    return Configuration(
        num_heads=num_heads, norm_eps=1e-12, activation=activation, empty_rows=empty_rows, positions="learned"
    )


TOKENS = np.array([[3, 1, 4, 2], [5, 2, 0, 0]])

DIALECT = Dialect(
    name="distilbert",
    about=__doc__,
    source="Sanh et al., DistilBERT, 2019 (arXiv:1910.01108); `DistilBertModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=Encoder,
            table=TABLE,
            configuration=configuration,
            called_with="tokens, `key_padding`",
            gives="hidden states [B, T, E]",
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"tokens": TOKENS},
                options={"key_padding": TOKENS != 0},
                about="Token 0 is padding, and masked by key_padding.",
            ),
        ),
    ),
    prefixes=("distilbert.",),
    ignored=(r"(vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|classifier|qa_outputs)\..*",),
    config=ConfigFile(
        families={"distilbert": {}},
        keys={"num_heads": "n_heads", "activation": "activation"},
        defaults={"distilbert": {"activation": "gelu"}},
        sizes={
            "dim": "E",
            "hidden_dim": "F",
            "vocab_size": "vocabulary",
            "n_layers": "i",
            "max_position_embeddings": "positions",
        },
        without_effect=("sinusoidal_pos_embds", "tie_weights_", "tie_word_embeddings"),
    ),
)
