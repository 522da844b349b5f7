"""imdb-classifier: an encoder without masks, pooled over time, that ends in a log-softmax.

Queries and keys are each divided by the fourth root of E, so scores by sqrt(E) in all; their projections have no bias.
In the tutorial's "wide" attention every head is as wide as the model; in the other the heads share its width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import Configuration, is_count
from specification.dialects.reading import Reader
from specification.parameters import Classifier, Embedding, Encoder, EncoderBlock, MultiHeadAttention


def imdb_classifier(
    state_dict: Mapping[str, Any], *, num_heads: int, pool: str = "max"
) -> tuple[Classifier, Configuration]:
    read = Reader(state_dict)

    def block(name: str) -> EncoderBlock:
        parts = [
            read.linear(f"{name}.mhattention.{part}", "E", "heads together", bias=False)
            for part in ("toqueries", "tokeys", "tovalues")
        ]
        unify = read.linear(f"{name}.mhattention.unifyheads", "heads together", "E")
        return EncoderBlock(
            MultiHeadAttention._make([*parts, unify]),
            read.norm(f"{name}.norm1"),
            read.feed_forward(f"{name}.ff.0", f"{name}.ff.2"),
            read.norm(f"{name}.norm2"),
        )

    tokens = read.take("token_embedding.weight", "vocabulary", "E")
    embedding = Embedding(tokens, read.take("pos_embedding.weight", "positions", "E"))
    blocks = [block(f"tblocks.{i}") for i in range(read.count(r"tblocks\.(\d+)\."))]
    parameters = Classifier(Encoder(embedding, blocks), read.linear("toprobs", "E", "classes"))
    read.heads(num_heads, "heads together")
    E, together = read.sizes.get("E"), read.sizes.get("heads together")
    if E and together and is_count(num_heads) and together not in (E, num_heads * E):
        read.problems.append(f"{num_heads} heads are {E} or {num_heads * E} wide together, got {together}")
    read.finish()
    return parameters, Configuration(num_heads=num_heads, scale="model_width", positions="learned", pooling=pool)
