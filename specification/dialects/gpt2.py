"""Any GPT-2 checkpoint with Hugging Face's names.

Its projections are stored [in, out]. Where the file has no output layer of its own, that is the token table turned.
"""

from __future__ import annotations

import numpy as np

from specification.configuration import Configuration
from specification.loading.decoders import CAUSAL, output_or
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Tied, Variant
from specification.loading.table import array, each, linear, norm, table
from specification.parameters import LanguageModel

PROJECTIONS = tuple(f"self_attention.{part}" for part in ("query", "key", "value"))

TABLE = table(
    array("wte.weight", "decoder.embedding.tokens", "vocabulary", "E"),
    array("wpe.weight", "decoder.embedding.positions", "positions", "E"),
    each(
        "h.{i}.",
        "decoder.blocks.{i}.",
        norm("ln_1", "self_attention_norm"),
        linear("attn.c_attn", PROJECTIONS, "E", "3 * E", turned=False),
        linear("attn.c_proj", "self_attention.output", turned=False),
        norm("ln_2", "feed_forward_norm"),
        linear("mlp.c_fc", "feed_forward.inner", "E", "F", turned=False),
        linear("mlp.c_proj", "feed_forward.outer", "F", "E", turned=False),
    ),
    norm("ln_f", "decoder.norm"),
    output_or("wte.weight"),
)


def configuration(
    *,
    num_heads: int,
    eps: float = 1e-5,
    activation: str = "gelu_tanh",
    empty_rows: str = "zero",
) -> Configuration:
    """eps and activation: layer_norm_epsilon and activation_function of the checkpoint's configuration.

    empty_rows: what a position gets that may attend to nothing, as padding before the first token. transformers 5.23
    gives what "zero" says with its default attention, and with attn_implementation="eager" what "mean" does.
    """
    return Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="learned",
        target_mask="causal",
    )


DIALECT = Dialect(
    name="gpt2",
    about=__doc__,
    source="Radford et al., Language Models are Unsupervised Multitask Learners, 2019; "
    "`GPT2LMHeadModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=LanguageModel,
            table=TABLE,
            configuration=configuration,
            called_with="tokens, `key_padding`",
            gives="logits [B, T, vocabulary]",
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"tokens": np.array([[3, 1, 4, 2], [5, 2, 0, 0]])},
                about="Token 0 is a token like all others.",
                without=("lm_head.weight",),
            ),
        ),
    ),
    prefixes=("transformer.",),
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),  # tables of who attends to whom
    config=ConfigFile(
        families={"gpt2": {}},
        keys={"num_heads": "n_head", "eps": "layer_norm_epsilon", "activation": "activation_function"},
        defaults={"gpt2": {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True}},
        fixed=CAUSAL
        | {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        sizes={"n_embd": "E", "n_inner": "F", "n_layer": "i", "n_positions": "positions", "vocab_size": "vocabulary"},
        computed_sizes={"F": Computed(("n_embd",), lambda content: 4 * content["n_embd"])},  # n_inner is null in most
        tied=Tied("lm_head.weight"),
        without_effect=(
            *("n_ctx", "reorder_and_upcast_attn"),  # the latter computes in float32, as is done here anyway
            *("summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        ),
    ),
)
