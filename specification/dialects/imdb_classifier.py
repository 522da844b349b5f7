"""An encoder without masks, pooled over time, that ends in a log-softmax.

Queries and keys are each divided by the fourth root of E, so scores by sqrt(E) in all; their projections have no bias.
In the tutorial's "wide" attention every head is as wide as the model; in the other the heads share its width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specification.configuration import Configuration, is_count
from specification.loading.reader import Reader
from specification.loading.record import Dialect, Example, Tutorial, Variant
from specification.loading.table import array, each, feed_forward, linear, norm, table
from specification.parameters import Classifier

TABLE = table(
    array("token_embedding.weight", "encoder.embedding.tokens", "vocabulary", "E"),
    array("pos_embedding.weight", "encoder.embedding.positions", "positions", "E"),
    each(
        "tblocks.{i}.",
        "encoder.blocks.{i}.",
        linear("mhattention.toqueries", "attention.query", "E", "heads together", bias=False),
        linear("mhattention.tokeys", "attention.key", "E", "heads together", bias=False),
        linear("mhattention.tovalues", "attention.value", "E", "heads together", bias=False),
        linear("mhattention.unifyheads", "attention.output", "heads together", "E"),
        norm("norm1", "attention_norm"),
        feed_forward("ff.0", "ff.2"),
        norm("norm2", "feed_forward_norm"),
    ),
    linear("toprobs", "output", "E", "classes"),
)


def configuration(*, num_heads: int, pool: str = "max") -> Configuration:
    """pool: how the positions become one, "max" or "mean"."""
    return Configuration(num_heads=num_heads, scale="model_width", positions="learned", pooling=pool)


def check(read: Reader, given: Mapping[str, Any]) -> None:
    num_heads, E, together = given["num_heads"], read.sizes.get("E"), read.sizes.get("heads together")
    if E and together and is_count(num_heads) and together not in (E, num_heads * E):
        read.problems.append(f"{num_heads} heads are {E} or {num_heads * E} wide together, got {together}")


DIALECT = Dialect(
    name="imdb-classifier",
    about=__doc__,
    source='a tutorial, "Coding a Transformer from Scratch"',
    variants=(
        Variant(
            structure=Classifier,
            table=TABLE,
            configuration=configuration,
            called_with="tokens",
            gives="log-probabilities [B, classes]",
            heads_share="heads together",
            check=check,
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"tokens": np.array([[3, 1, 4, 2], [5, 2, 0, 0]])},
                about="Token 0 is padding, which is not masked.",
                sizes={"heads together": 8, "classes": 3},
            ),
        ),
    ),
    tutorial=Tutorial(
        title='"Coding a Transformer from Scratch"',
        builds="a classifier of film reviews (IMDB)",
        departures={
            "scores divided by": "sqrt(E), a fourth root on each side",
            "a row that may attend to nothing": "no masks",
            "norm": "after the sum",
            "norm divides by": "sqrt(variance + 1e-5)",
            "positions": "learned",
            "embedding": "as it is",
            "padded source keys": "not masked",
            "dropout": "after the norm",
            "biases of query, key, value": "no",
        },
    ),
)
