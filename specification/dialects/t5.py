"""A T5 or mT5 checkpoint with Hugging Face's names: encoder and decoder, or the encoder alone.

Norms are RMS norms before each sublayer. Scores are not scaled; a bias that all blocks of a stack share says how far a
key is away. The feed-forward network is gated in T5 1.1 and its kin (Flan-T5), and is not in the first T5. Source and
target have one token table. Where the file has no output layer of its own, that is the token table turned; the first T5
then multiplies what the output layer is given by 1 / sqrt(E).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specification.configuration import Configuration
from specification.loading.decoders import CAUSAL, TOKENS, output_or
from specification.loading.reader import Reader
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Variant
from specification.loading.table import Row, Table, array, each, linear, norm, table
from specification.parameters import Encoder, Transformer

GATED = ("*DenseReluDense.wi_0.weight",)


def attention(theirs: str, ours: str) -> Table:
    return each(
        f"{theirs}.",
        f"{ours}.",
        linear("q", "query", "E", "num_heads * D", bias=False),
        linear("k", "key", "E", "num_heads * D", bias=False),
        linear("v", "value", "E", "num_heads * D", bias=False),
        linear("o", "output", "num_heads * D", "E", bias=False),
    )


def feed_forward(theirs: str) -> Table:
    """With one projection of the input, or with two."""
    inner = Row("wi.weight", "inner.weight", ("F", "E"), turned=True, unless=GATED)
    first = Row("wi_0.weight", "gate.weight", ("F", "E"), turned=True, when=GATED)
    second = Row("wi_1.weight", "inner.weight", ("F", "E"), turned=True, when=GATED)
    outer = linear("wo", "outer", "F", "E", bias=False)
    return each(f"{theirs}.DenseReluDense.", "feed_forward.", (inner, first, second), outer)


def stack(theirs: str, ours: str, place: str, block: Table) -> Table:
    """Tokens, relative positions, blocks and last norm."""
    bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return table(
        array("shared.weight", f"{ours}embedding.tokens", "vocabulary", "E"),
        array(bias, f"{ours}relative_positions", "buckets", "num_heads"),
        each(f"{theirs}.block.{{{place}}}.", f"{ours}blocks.{{{place}}}.", block),
        norm(f"{theirs}.final_layer_norm", f"{ours}norm", biased=False),
    )


ENCODER_BLOCK = table(
    attention("layer.0.SelfAttention", "attention"),
    norm("layer.0.layer_norm", "attention_norm", biased=False),
    feed_forward("layer.1"),
    norm("layer.1.layer_norm", "feed_forward_norm", biased=False),
)

DECODER_BLOCK = table(
    attention("layer.0.SelfAttention", "self_attention"),
    norm("layer.0.layer_norm", "self_attention_norm", biased=False),
    attention("layer.1.EncDecAttention", "cross_attention"),
    norm("layer.1.layer_norm", "cross_attention_norm", biased=False),
    feed_forward("layer.2"),
    norm("layer.2.layer_norm", "feed_forward_norm", biased=False),
)


def configuration(
    *,
    num_heads: int,
    eps: float = 1e-6,
    activation: str = "relu",
    relative_furthest: int = 128,
    scaled_output: bool = True,
    empty_rows: str = "zero",
    source_padding: int | None = None,
) -> Configuration:
    """eps, relative_furthest: layer_norm_epsilon and relative_attention_max_distance of the configuration.

    activation: what feed_forward_proj says. scaled_output: scale_decoder_outputs, and in older files
    tie_word_embeddings. empty_rows as in the dialect `llama`.

    source_padding: the id that masks the source where it stands, pad_token_id of the checkpoint's configuration; None
    where the caller masks it, as in transformers.
    """
    return Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm="rms_norm",
        norm_eps=eps,
        activation=activation,
        scale=1.0,
        empty_rows=empty_rows,
        positions="none",
        source_padding=source_padding,
        target_mask="causal",
        relative_furthest=relative_furthest,
        scaled_output=scaled_output,
    )


def check(read: Reader, given: Mapping[str, Any]) -> None:
    """Older files have the token table once more under two other names; it must be the same."""
    shared = read.entries.get("shared.weight", np.array(None))
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name in read.entries and not np.array_equal(read.entries[name], shared):
            read.problems.append(f"{name} is another array than shared.weight")


def activation_of(told: Mapping[str, Any]) -> Any:
    """Read the activation: `feed_forward_proj` is "relu", "gated-gelu" or "gated-silu"; its "gelu" is the tanh form."""
    name = told["feed_forward_proj"]
    last = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    return told.get("dense_act_fn", last)


def is_scaled(told: Mapping[str, Any]) -> bool:
    """Read whether the output layer's input is scaled, which newer files say in so many words."""
    said = told.get("scale_decoder_outputs", told["tie_word_embeddings"] is not False)
    return bool(said) and told["model_type"] == "t5"


OUTPUT = output_or("shared.weight")

DIALECT = Dialect(
    name="t5",
    about=__doc__,
    source="Raffel et al., T5, 2020 (arXiv:1910.10683); Xue et al., mT5, 2021 (arXiv:2010.11934); "
    "`T5ForConditionalGeneration` and `T5EncoderModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=Transformer,
            table=table(
                stack("encoder", "encoder.", "i", ENCODER_BLOCK),
                stack("decoder", "decoder.", "j", DECODER_BLOCK),
                OUTPUT,
            ),
            configuration=configuration,
            called_with="source, target",
            gives="logits [B, T, vocabulary]",
            name="an encoder with a decoder",
            marks=("decoder.block.*",),
            heads_share="",
            padding={"source_padding": "vocabulary"},
            check=check,
            example=Example(
                hyperparameters={"num_heads": 4},
                inputs={"source": TOKENS, "target": np.array([[0, 2, 5], [0, 4, 3]])},
                about="The target begins with token 0, as T5's does.",
                sizes={"D": 3, "buckets": 6},
                without=("lm_head.weight", "*.wi_0.weight", "*.wi_1.weight"),
            ),
        ),
        Variant(
            structure=Encoder,
            table=stack("encoder", "", "i", ENCODER_BLOCK),
            configuration=configuration,
            called_with="tokens, `key_padding`",
            gives="hidden states [B, T, E]",
            name="an encoder alone",
            heads_share="",
            padding={"source_padding": "vocabulary"},
            check=check,
        ),
    ),
    ignored=(
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # in old files, and of no use
    ),
    config=ConfigFile(
        families={"t5": {}, "mt5": {}},
        keys={
            "num_heads": "num_heads",
            "eps": "layer_norm_epsilon",
            "activation": Computed(("feed_forward_proj", "dense_act_fn"), activation_of),
            "relative_furthest": "relative_attention_max_distance",
            "scaled_output": Computed(("scale_decoder_outputs", "tie_word_embeddings"), is_scaled),
        },
        defaults={
            family: {
                "layer_norm_epsilon": 1e-6,
                "feed_forward_proj": feed_forward_proj,
                "relative_attention_max_distance": 128,
                "tie_word_embeddings": None,
            }
            for family, feed_forward_proj in (("mt5", "gated-gelu"), ("t5", "relu"))
        },
        fixed=CAUSAL | {"is_decoder": False},
        sizes={
            "d_model": "E",
            "d_kv": "D",
            "d_ff": "F",
            "vocab_size": "vocabulary",
            "num_layers": "i",
            "num_decoder_layers": "j",
            "relative_attention_num_buckets": "buckets",
        },
        instead={"num_decoder_layers": "num_layers"},
        entries={"is_gated_act": "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"},
        without_effect=("is_encoder_decoder", "n_positions", "output_past"),
    ),
)
