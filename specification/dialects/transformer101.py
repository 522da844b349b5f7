"""Multi-head self-attention with one projection of query, key and value for every head."""

from __future__ import annotations

from specification.configuration import Configuration
from specification.loading.record import Dialect, Example, Tutorial, Variant
from specification.loading.table import Table, each, linear, table
from specification.parameters import MultiHeadAttention


def separate_heads(output: str) -> Table:
    """Heads of one width D, whose values may have another, V. output: the name of the last projection."""
    return table(
        each(
            "heads.{h}.",
            "",
            linear("q", "query.{h}", "E", "D"),
            linear("k", "key.{h}", "E", "D"),
            linear("v", "value.{h}", "E", "V"),
        ),
        linear(output, "output", "h * V", "E"),
    )


def configuration(*, num_heads: int) -> Configuration:
    return Configuration(num_heads=num_heads)


DIALECT = Dialect(
    name="transformer101",
    about=__doc__,
    source='a tutorial, "Transformer101"',
    variants=(
        Variant(
            structure=MultiHeadAttention,
            table=separate_heads("output_linear"),
            configuration=configuration,
            called_with="x",
            gives="[B, T, E]",
            counted={"num_heads": "h"},
            example=Example(hyperparameters={}, inputs={"x": 3}, sizes={"h": 2, "D": 4, "V": 4}),
        ),
    ),
    tutorial=Tutorial(
        title='"Transformer101"',
        builds="self-attention and multi-head attention",
        departures={
            "scores divided by": "sqrt(D)",
            "a row that may attend to nothing": "no masks",
            "norm": "none",
            "positions": "none",
            "embedding": "none",
            "dropout": "none",
            "biases of query, key, value": "yes",
        },
    ),
)
