"""The strategy that draws cases of an operation with all its features, by operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.sampling import strategies as generation
from conformance.sampling.losses import loss_cases
from conformance.sampling.optimizers import adam_cases, clip_cases, sgd_cases
from conformance.sampling.positions import alibi_cases, relative_bias_cases
from conformance.sampling.rotary import frequency_cases, rotary_cases
from conformance.sampling.silu import silu_cases

CASES: dict[str, Callable[..., st.SearchStrategy[Case]]] = {
    "attention": partial(generation.attention_cases, empty_rows=("zero", "zero", "mean")),
    "attention_weights": partial(generation.attention_cases, "attention_weights"),
    "attention_logsumexp": partial(generation.attention_cases, "attention_logsumexp"),
    "merge_attention": generation.merge_cases,
    # Projections are fused or, as often, one for every head.
    "multi_head_attention": lambda **given: st.booleans().flatmap(
        lambda separate: generation.multi_head_cases(separate=separate, **given)
    ),
    "layer_norm": partial(generation.norm_cases, "layer_norm"),
    "rms_norm": partial(generation.norm_cases, "rms_norm"),
    "standard_deviation_norm": partial(generation.norm_cases, "standard_deviation_norm"),
    "feed_forward": partial(generation.feed_forward_cases, "feed_forward"),
    "gated_feed_forward": partial(generation.feed_forward_cases, "gated_feed_forward"),
    "embedding": partial(generation.lookup_cases, "embedding"),
    "learned_positions": partial(generation.lookup_cases, "learned_positions"),
    "sinusoidal_positions": generation.sinusoidal_cases,
    "alibi_bias": alibi_cases,
    "relative_position_bias": relative_bias_cases,
    "adam_step": adam_cases,
    "clip_by_global_norm": clip_cases,
    "cross_entropy": partial(loss_cases, "cross_entropy"),
    "nll_loss": partial(loss_cases, "nll_loss"),
    "rotary_embedding": rotary_cases,
    "rotary_frequencies": frequency_cases,
    "sgd_step": sgd_cases,
    "silu": silu_cases,
}


def operation_cases(
    operation: str,
    dtypes: tuple[str, ...] = generation.DTYPES,
    declaration: Declaration = EVERYTHING,
    **choices: Any,
) -> st.SearchStrategy[Case]:
    """Cases of any operation with all its features. choices: what else its strategy takes."""
    return CASES[operation](dtypes=dtypes, declaration=declaration, **choices)
