"""What every operation is, by name: whatever needs no bound, no check and no drawn case to say."""

from __future__ import annotations

from conformance.cases.facts.attention import (
    ATTENTION,
    ATTENTION_LOGSUMEXP,
    ATTENTION_WEIGHTS,
    MERGE_ATTENTION,
    MULTI_HEAD_ATTENTION,
)
from conformance.cases.facts.feed_forward import FEED_FORWARD, GATED_FEED_FORWARD, SILU
from conformance.cases.facts.losses import CROSS_ENTROPY, NLL_LOSS
from conformance.cases.facts.norms import LAYER_NORM, RMS_NORM, STANDARD_DEVIATION_NORM
from conformance.cases.facts.optimizers import ADAM_STEP, CLIP_BY_GLOBAL_NORM, SGD_STEP
from conformance.cases.facts.positions import (
    ALIBI_BIAS,
    EMBEDDING,
    LEARNED_POSITIONS,
    RELATIVE_POSITION_BIAS,
    SINUSOIDAL_POSITIONS,
)
from conformance.cases.facts.rotary import ROTARY_EMBEDDING, ROTARY_FREQUENCIES
from conformance.cases.operation import OperationFacts

IN_ORDER = (
    *(ATTENTION, ATTENTION_WEIGHTS, ATTENTION_LOGSUMEXP, MERGE_ATTENTION, MULTI_HEAD_ATTENTION),
    *(LAYER_NORM, RMS_NORM, STANDARD_DEVIATION_NORM),
    *(FEED_FORWARD, GATED_FEED_FORWARD, EMBEDDING, LEARNED_POSITIONS, SINUSOIDAL_POSITIONS),
    *(ALIBI_BIAS, RELATIVE_POSITION_BIAS),
    *(ADAM_STEP, CLIP_BY_GLOBAL_NORM, CROSS_ENTROPY, NLL_LOSS, ROTARY_EMBEDDING, ROTARY_FREQUENCIES, SGD_STEP, SILU),
)
"""As they are studied, and the rest by name."""
BY_NAME = {one.name: one for one in IN_ORDER}


def operations() -> dict[str, OperationFacts]:
    """Return every operation by name, in the order in which they are studied."""
    return BY_NAME


def operation_facts(name: str) -> OperationFacts:
    return BY_NAME[name]
