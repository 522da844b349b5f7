"""The attention of one layer of GPT-OSS, under Hugging Face's names within `self_attn`.

Each head has a sink, a number that takes part in the softmax and has no value. Queries and keys are rotated, with YaRN,
and every second layer has a sliding window. The caller gives the causal mask.

A whole GPT-OSS is a mixture of experts, which no dialect covers.
"""

from __future__ import annotations

import numpy as np

from specification.configuration import AttentionLayer, Configuration
from specification.loading.record import Dialect, Example, Variant
from specification.loading.table import array, linear, table
from specification.parameters import MultiHeadAttention
from specification.rotary import Rotary, YarnScaling

BIASED = "*_proj.bias"

TABLE = table(
    linear("q_proj", "query", "E", "num_heads * D", bias=BIASED),
    linear("k_proj", "key", "E", "key_heads * D", bias=BIASED),
    linear("v_proj", "value", "E", "key_heads * D", bias=BIASED),
    linear("o_proj", "output", "num_heads * D", "E", bias=BIASED),
    array("sinks", "sinks", "num_heads"),
)

ROTARY = Rotary(base=150000.0, scaling=YarnScaling(factor=32.0, original_length=4096, truncate=False))
"""Of GPT-OSS 20B and 120B."""


def configuration(
    *, num_heads: int, key_heads: int, window: int | None = None, rotary: Rotary = ROTARY
) -> Configuration:
    """key_heads: heads of keys and values.

    window: sliding_window of the checkpoint's configuration, which counts the query's own key; None for a full layer.
    rotary: how queries and keys are rotated; as in GPT-OSS 20B and 120B unless given.
    """
    layer = AttentionLayer(window=None if window is None else (window - 1, 0), rotary=rotary)
    return Configuration(num_heads=num_heads, attention_layers=(layer,))


DIALECT = Dialect(
    name="gpt_oss",
    about=__doc__,
    source="OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025 (arXiv:2508.10925); "
    "`GptOssAttention` of Hugging Face transformers",
    variants=(
        Variant(
            structure=MultiHeadAttention,
            table=TABLE,
            configuration=configuration,
            called_with="x, `mask`",
            gives="[B, T, E]",
            heads_share="",
            example=Example(
                hyperparameters={"num_heads": 4, "key_heads": 2, "window": 3},
                inputs={"x": 5},
                options={"mask": np.tril(np.ones((5, 5), bool))},
                about="The mask is causal, and the layer has a sliding window.",
                sizes={"D": 4},
            ),
        ),
    ),
)
