"""The strategy that draws cases of an operation with all its features, by operation."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.sampling.strategies import DTYPES

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("strategies:attention_cases", {"empty_rows": ("zero", "zero", "mean")}),
    "attention_weights": ("strategies:attention_cases", {"operation": "attention_weights"}),
    "attention_logsumexp": ("strategies:attention_cases", {"operation": "attention_logsumexp"}),
    "merge_attention": ("strategies:merge_cases", {}),
    "multi_head_attention": ("strategies:fused_or_separate_cases", {}),
    "layer_norm": ("strategies:norm_cases", {"operation": "layer_norm"}),
    "rms_norm": ("strategies:norm_cases", {"operation": "rms_norm"}),
    "standard_deviation_norm": ("strategies:norm_cases", {"operation": "standard_deviation_norm"}),
    "feed_forward": ("strategies:feed_forward_cases", {"operation": "feed_forward"}),
    "gated_feed_forward": ("strategies:feed_forward_cases", {"operation": "gated_feed_forward"}),
    "embedding": ("strategies:lookup_cases", {"operation": "embedding"}),
    "learned_positions": ("strategies:lookup_cases", {"operation": "learned_positions"}),
    "sinusoidal_positions": ("strategies:sinusoidal_cases", {}),
    "alibi_bias": ("positions:alibi_cases", {}),
    "relative_position_bias": ("positions:relative_bias_cases", {}),
    "adam_step": ("optimizers:adam_cases", {}),
    "clip_by_global_norm": ("optimizers:clip_cases", {}),
    "cross_entropy": ("losses:loss_cases", {"operation": "cross_entropy"}),
    "nll_loss": ("losses:loss_cases", {"operation": "nll_loss"}),
    "rotary_embedding": ("rotary:rotary_cases", {}),
    "rotary_frequencies": ("rotary:frequency_cases", {}),
    "sgd_step": ("optimizers:sgd_cases", {}),
    "silu": ("strategies:silu_cases", {}),
}
"""By operation, the strategy in this folder and what it is given; its file is loaded when cases are first drawn."""


def operation_cases(
    operation: str,
    dtypes: tuple[str, ...] = DTYPES,
    declaration: Declaration = EVERYTHING,
    **choices: Any,
) -> st.SearchStrategy[Case]:
    """Cases of any operation with all its features. choices: what else its strategy takes."""
    strategy, given = CASES[operation]
    cases: st.SearchStrategy[Case] = resolve_name(f"conformance.sampling.{strategy}")(
        dtypes=dtypes, declaration=declaration, **given, **choices
    )
    return cases
