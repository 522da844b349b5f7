"""A pre-norm encoder-decoder with its own norm and its own reading of the sinusoids.

The norm divides by the unbiased deviation plus eps. In the positions column c has an angle of its own, with 2c where
the paper has 2i. Embeddings are multiplied by sqrt(E). Forbidden scores are filled with -1e9, so a row without allowed
keys takes the mean of all values.

Its multi-head attention made of heads with their own key and value widths is told by its names.
"""

from __future__ import annotations

from specification.configuration import Configuration
from specification.dialects import transformer101
from specification.loading.record import ABOUT_PADDED, PADDED, Dialect, Example, Tutorial, Variant
from specification.loading.table import array, attention, each, feed_forward, linear, norm, table
from specification.parameters import MultiHeadAttention, Transformer

PROJECTIONS = ("q_linear", "k_linear", "v_linear", "out")

FEED_FORWARD = feed_forward("ff.linear_1", "ff.linear_2")

TABLE = table(
    array("encoder.embed.embed.weight", "encoder.embedding.tokens", "source vocabulary", "E"),
    each(
        "encoder.layers.{i}.",
        "encoder.blocks.{i}.",
        attention("attn", "attention", *PROJECTIONS),
        norm("norm_1", "attention_norm", weight="alpha"),
        FEED_FORWARD,
        norm("norm_2", "feed_forward_norm", weight="alpha"),
    ),
    norm("encoder.norm", "encoder.norm", weight="alpha"),
    array("decoder.embed.embed.weight", "decoder.embedding.tokens", "target vocabulary", "E"),
    each(
        "decoder.layers.{i}.",
        "decoder.blocks.{i}.",
        attention("attn_1", "self_attention", *PROJECTIONS),
        norm("norm_1", "self_attention_norm", weight="alpha"),
        attention("attn_2", "cross_attention", *PROJECTIONS),
        norm("norm_2", "cross_attention_norm", weight="alpha"),
        FEED_FORWARD,
        norm("norm_3", "feed_forward_norm", weight="alpha"),
    ),
    norm("decoder.norm", "decoder.norm", weight="alpha"),
    linear("out", "output", "E", "outputs"),
)


def configuration(*, num_heads: int, source_pad: int | None = None, target_pad: int | None = None) -> Configuration:
    """num_heads is needed for the encoder-decoder; separate heads take no hyperparameters.

    Without a padding id nothing is masked as padding.
    """
    return Configuration(
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


DIALECT = Dialect(
    name="prenorm-blog",
    about=__doc__,
    source='a tutorial, "Transformers"',
    variants=(
        Variant(
            name="separate heads",
            marks=("linear.weight",),
            structure=MultiHeadAttention,
            table=transformer101.separate_heads("linear"),
            configuration=transformer101.configuration,
            called_with="query, key, value",
            gives="[B, T, E]",
            counted={"num_heads": "h"},
        ),
        Variant(
            structure=Transformer,
            table=TABLE,
            configuration=configuration,
            called_with="source, target",
            gives="logits [B, T, vocabulary]",
            padding={"source_pad": "source vocabulary", "target_pad": "target vocabulary"},
            example=Example(
                hyperparameters={"num_heads": 2, "source_pad": 0, "target_pad": 0},
                inputs=PADDED,
                about=ABOUT_PADDED,
                sizes={"source vocabulary": 6, "target vocabulary": 6, "outputs": 6},
            ),
        ),
    ),
    tutorial=Tutorial(
        title='"Transformers", a blog post',
        builds="self-attention in small steps, then a pre-norm encoder-decoder",
        departures={
            "scores divided by": "sqrt(D)",
            "a row that may attend to nothing": "mean of all values",
            "norm": "before the sublayer, and at the end",
            "norm divides by": "unbiased deviation + 1e-6",
            "positions": "an angle for every column",
            "embedding": "times sqrt(E)",
            "padded source keys": "masked",
            "padded target": "masked as keys",
            "dropout": "on weights, inside, and before the sum",
            "biases of query, key, value": "yes",
        },
    ),
)
