"""One record for each operation: what it takes, what is right, and how it is judged."""

from __future__ import annotations

from conformance.cases.operation import Operation
from conformance.operations import (
    attention,
    attention_logsumexp,
    attention_weights,
    embedding,
    feed_forward,
    layer_norm,
    learned_positions,
    merge_attention,
    multi_head_attention,
    rms_norm,
    sinusoidal_positions,
    standard_deviation_norm,
)

MODULES = (
    *(attention, attention_weights, attention_logsumexp, merge_attention, multi_head_attention),
    *(layer_norm, rms_norm, standard_deviation_norm),
    *(feed_forward, embedding, learned_positions, sinusoidal_positions),
)
"""In the order in which they are studied."""

OPERATIONS: dict[str, Operation] = {module.OPERATION.name: module.OPERATION for module in MODULES}
