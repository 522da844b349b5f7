"""An encoder-decoder that divides scores by sqrt(E) and fills forbidden ones with -1e20.

Every forbidden score is the same finite number, so a row without allowed keys takes the mean of all values. The
target's padding is not masked.
"""

from __future__ import annotations

from specification.configuration import Configuration
from specification.loading.record import ABOUT_PADDED, PADDED, Dialect, Example, Tutorial, Variant
from specification.loading.table import Table, array, attention, each, feed_forward, linear, norm, table
from specification.parameters import Transformer

PROJECTIONS = ("queries", "keys", "values", "fc_out")


def block(ours: str) -> Table:
    """Attention and feed-forward. ours: the name of the attention, which in a decoder looks at the encoder's output."""
    return table(
        attention("attention", ours, *PROJECTIONS),
        norm("norm1", f"{ours}_norm"),
        feed_forward("feed_forward.0", "feed_forward.2"),
        norm("norm2", "feed_forward_norm"),
    )


TABLE = table(
    array("encoder.word_embedding.weight", "encoder.embedding.tokens", "source vocabulary", "E"),
    array("encoder.position_embedding.weight", "encoder.embedding.positions", "source positions", "E"),
    each("encoder.layers.{i}.", "encoder.blocks.{i}.", block("attention")),
    array("decoder.word_embedding.weight", "decoder.embedding.tokens", "target vocabulary", "E"),
    array("decoder.position_embedding.weight", "decoder.embedding.positions", "target positions", "E"),
    each(
        "decoder.layers.{i}.",
        "decoder.blocks.{i}.",
        attention("attention", "self_attention", *PROJECTIONS),
        norm("norm", "self_attention_norm"),
        each("transformer_block.", "", block("cross_attention")),
    ),
    linear("decoder.fc_out", "output", "E", "outputs"),
)


def configuration(*, num_heads: int, source_pad: int, target_pad: int | None = None) -> Configuration:
    """target_pad is taken and not used, as in the tutorial."""
    return Configuration(
        num_heads=num_heads,
        scale="model_width",
        empty_rows="mean",
        positions="learned",
        source_padding=source_pad,
        target_padding=target_pad,
        target_mask="causal",
    )


DIALECT = Dialect(
    name="notebook-scratch",
    about=__doc__,
    source="a tutorial without a title",
    variants=(
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
                sizes={
                    "source vocabulary": 6,
                    "target vocabulary": 6,
                    "source positions": 5,
                    "target positions": 5,
                    "outputs": 6,
                },
            ),
        ),
    ),
    tutorial=Tutorial(
        title='none; its first heading is "Introduction", and "Implementing the Self-Attention Mechanism" follows',
        builds="an encoder-decoder, tried on a toy batch",
        departures={
            "scores divided by": "sqrt(E)",
            "a row that may attend to nothing": "mean of all values",
            "norm": "after the sum",
            "norm divides by": "sqrt(variance + 1e-5)",
            "positions": "learned",
            "embedding": "as it is",
            "padded source keys": "masked",
            "padded target": "not masked",
            "dropout": "after the norm",
            "biases of query, key, value": "yes",
        },
    ),
)
