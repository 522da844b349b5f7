"""An encoder-decoder in which a padded target position, as a query, may attend to nothing.

Forbidden scores are filled with -1e9, so such a position takes the mean of all values. Padding is id 0 on both sides.
The tutorial names its input block without giving it; here that is an embedding, with sinusoidal positions added.
"""

from __future__ import annotations

from specification.configuration import Configuration
from specification.loading.record import ABOUT_PADDED, PADDED, Dialect, Example, Tutorial, Variant
from specification.loading.table import array, attention, each, feed_forward, linear, norm, table
from specification.parameters import Transformer

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")

FEED_FORWARD = feed_forward("ff.sq.0", "ff.sq.2")

TABLE = table(
    array("src_embed.embed.weight", "encoder.embedding.tokens", "source vocabulary", "E"),
    each(
        "encs.{i}.",
        "encoder.blocks.{i}.",
        attention("mha", "attention", *PROJECTIONS),
        norm("add_norm1.norm", "attention_norm"),
        FEED_FORWARD,
        norm("add_norm2.norm", "feed_forward_norm"),
    ),
    array("tgt_embed.embed.weight", "decoder.embedding.tokens", "target vocabulary", "E"),
    each(
        "decs.{i}.",
        "decoder.blocks.{i}.",
        attention("mha", "self_attention", *PROJECTIONS),
        norm("add_and_norm1.norm", "self_attention_norm"),
        attention("cross_mha", "cross_attention", *PROJECTIONS),
        norm("add_and_norm2.norm", "cross_attention_norm"),
        FEED_FORWARD,
        norm("add_and_norm3.norm", "feed_forward_norm"),
    ),
    linear("fc", "output", "E", "outputs"),
)


def configuration(*, num_heads: int) -> Configuration:
    return Configuration(
        num_heads=num_heads,
        empty_rows="mean",
        positions="sinusoidal",
        source_padding=0,
        target_padding=0,
        target_mask="causal and real queries",
    )


DIALECT = Dialect(
    name="dawn",
    about=__doc__,
    source='a tutorial, "Dawn of the Transformer"',
    variants=(
        Variant(
            structure=Transformer,
            table=TABLE,
            configuration=configuration,
            called_with="source, target",
            gives="logits [B, T, vocabulary]",
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs=PADDED,
                about=ABOUT_PADDED,
                sizes={"source vocabulary": 6, "target vocabulary": 6, "outputs": 6},
            ),
        ),
    ),
    tutorial=Tutorial(
        title='"Dawn of the Transformer", part of a series',
        builds="an encoder-decoder for machine translation",
        departures={
            "scores divided by": "sqrt(D)",
            "a row that may attend to nothing": "mean of all values",
            "norm": "after the sum",
            "norm divides by": "sqrt(variance + 1e-5)",
            "positions": "sinusoidal",
            "embedding": "as it is",
            "padded source keys": "masked",
            "padded target": "masked as queries",
            "dropout": "twice before the sum",
            "biases of query, key, value": "yes",
        },
    ),
)
