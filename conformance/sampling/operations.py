"""The strategies that draw cases of an operation: with all its features, with none, and with one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

from hypothesis import strategies as st

from conformance.cases.case import Case, widths_of
from conformance.cases.declaration import EVERYTHING, Declaration, Sizes, adapt_sizes
from conformance.cases.facts import operation_facts
from conformance.cases.features import basics_of, features_of, has_declared_masks, has_masks, is_norm
from conformance.sampling import strategies as generation
from conformance.sampling.special import has_narrow_window
from conformance.sampling.strategies import DTYPES, EMPTY, KERNEL_WIDTHS, SHORT, window_sizes
from conformance.subjects.subject import differentiable
from specification.dtypes import HALF

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("strategies:attention_cases", {"empty_rows": ("zero", "zero", "mean")}),
    "attention_weights": ("strategies:attention_cases", {"operation": "attention_weights"}),
    "attention_logsumexp": ("strategies:attention_cases", {"operation": "attention_logsumexp"}),
    "merge_attention": ("strategies:merge_cases", {}),
    "multi_head_attention": ("strategies:fused_or_separate_cases", {}),
    "latent_attention": ("latent_attention:latent_cases", {}),
    "layer_norm": ("layers:norm_cases", {"operation": "layer_norm"}),
    "rms_norm": ("layers:norm_cases", {"operation": "rms_norm"}),
    "standard_deviation_norm": ("layers:norm_cases", {"operation": "standard_deviation_norm"}),
    "feed_forward": ("layers:feed_forward_cases", {"operation": "feed_forward"}),
    "gated_feed_forward": ("layers:feed_forward_cases", {"operation": "gated_feed_forward"}),
    "mixture_of_experts": ("experts:mixture_cases", {}),
    "route": ("experts:route_cases", {}),
    "load_balancing_loss": ("experts:router_loss_cases", {"operation": "load_balancing_loss"}),
    "router_z_loss": ("experts:router_loss_cases", {"operation": "router_z_loss"}),
    "embedding": ("positions:lookup_cases", {"operation": "embedding"}),
    "learned_positions": ("positions:lookup_cases", {"operation": "learned_positions"}),
    "sinusoidal_positions": ("positions:sinusoidal_cases", {}),
    "alibi_bias": ("positions:alibi_cases", {}),
    "relative_position_bias": ("positions:relative_bias_cases", {}),
    "adam_step": ("training:adam_cases", {}),
    "clip_by_global_norm": ("training:clip_cases", {}),
    "cross_entropy": ("training:loss_cases", {"operation": "cross_entropy"}),
    "nll_loss": ("training:loss_cases", {"operation": "nll_loss"}),
    "rotary_embedding": ("positions:rotary_cases", {}),
    "rotary_frequencies": ("positions:frequency_cases", {}),
    "sgd_step": ("training:sgd_cases", {}),
    "silu": ("layers:silu_cases", {}),
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


# --- cases of one feature ---------------------------------------------------------------------------------------------

WITH_DROPOUT = ("attention", "multi_head_attention")


def plain_cases(operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case]:
    """The operation with nothing that could be left away."""
    return usual_cases(operation, declaration.keep_features(), dtype)


def usual_cases(operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case]:
    """Any cases of the operation; where shapes are compiled, those of attention have the sizes of other claims."""
    if declaration.compiled and operation.startswith("attention"):
        return operation_cases(operation, (dtype,), declaration, plans=feature_sizes("", declaration))
    return operation_cases(operation, (dtype,), declaration)


def feature_cases(feature: str, operation: str, declaration: Declaration, dtype: str) -> st.SearchStrategy[Case] | None:
    """Cases that use the feature, and as little else as can be; None where the operation has no such thing."""
    alone, uses = declaration.keep_features(feature), partial(uses_feature, feature)
    if feature == "gradients":
        return usual_cases(operation, alone, dtype)
    if feature == "offset":  # of a description; an array has none
        if not operation.startswith("attention") or not {"structured", "causal"} <= declaration.features:
            return None
        alone = declaration.keep_features(feature, "causal")
        plans = feature_sizes(feature, alone) if declaration.compiled else None
        cases = generation.attention_cases(
            operation, "causal", (), False, False, (dtype,), plans=plans, declaration=alone
        )
        return cases.filter(uses)
    if feature in ("axes", "wide_weights"):
        dtypes = (dtype,) if feature == "axes" else tuple(name for name in declaration.dtypes if name in HALF)
        if not is_norm(operation) or not dtypes:
            return None
        return operation_cases(operation, dtypes[:1], alone, gradients=False).filter(uses)
    combined = feature in ("combined", "or")
    if combined:  # arrays are combined before the subject sees them
        if "structured" not in declaration or len(declaration.masks) < 2:
            return None
        alone = declaration.keep_features(feature, *declaration.masks, "combined")
    if feature in operation_facts(operation).rules and not has_masks(operation):
        return operation_cases(operation, (dtype,), alone).filter(uses)
    if operation == "multi_head_attention" and feature in ("fused", "separate"):
        return generation.multi_head_cases(feature == "separate", dtypes=(dtype,), declaration=alone)
    if not has_masks(operation) or feature not in operation_facts("attention").rules:
        return None
    if feature in ("dropout", "empty_rows") and operation not in WITH_DROPOUT:
        return None
    mask = "combined" if combined else feature if feature in generation.MASKS else "none"
    if operation == "multi_head_attention":
        if feature in ("empty", "empty_rows"):
            return None
        plans = feature_sizes(feature, alone)
        cases = generation.multi_head_cases(
            mask=mask, focus=(feature,), dtypes=(dtype,), plans=plans, declaration=alone
        )
        return cases.filter(uses)
    plans = EMPTY if feature == "empty" else feature_sizes(feature, alone)
    if feature == "window" and declaration.windows:
        plans = window_sizes(alone)
    attend = partial(
        generation.attention_cases, operation, mask, others=False, dtypes=(dtype,), plans=plans, declaration=alone
    )
    if mask == "none":
        modes = ("mean",) if feature == "empty_rows" else ("zero",)
        return attend(focus=(feature,), gradients=False, empty_rows=modes).filter(uses)
    if feature == "window":
        return attend().filter(has_narrow_window)
    return attend().filter(uses) if feature == "or" else attend()


def feature_sizes(feature: str, declaration: Declaration) -> tuple[Sizes, ...]:
    """Short sizes that have the feature, with the fewest axes of size 1, which broadcast without being supported.

    Where shapes are compiled, the first of them alone.
    """
    sizes = [adapt_sizes(plan, declaration) for plan in SHORT]
    sizes = [s for s in sizes if feature != "gqa" or s.H > s.G] or sizes
    fewest = min(s.count(1) for s in sizes)
    chosen = tuple(s for s in sizes if s.count(1) == fewest)
    return chosen[:1] if declaration.compiled else chosen


def uses_feature(feature: str, case: Case) -> bool:
    return feature in features_of(case) | basics_of(case)


def has_other_masks(declaration: Declaration, case: Case) -> bool:
    """Whether a mask or window of the case is none that is declared."""
    return not has_declared_masks(case, declaration)


def has_other_widths(declaration: Declaration, case: Case) -> bool:
    return not declaration.takes_widths(*widths_of(case))


# --- cases made of any ------------------------------------------------------------------------------------------------


def draw_constants(case: Case) -> st.SearchStrategy[Case]:
    """All inputs but one are constants, or one is; as the case is, where it has no gradients or no two inputs."""
    names = differentiable(case)
    if not case.cotangents or len(names) < 2:
        return st.just(case)
    one = st.sampled_from(names)
    alone = one.map(lambda name: tuple(other for other in names if other != name))
    return st.one_of(one.map(lambda name: (name,)), alone).map(lambda names: replace(case, constants=names))


KERNEL_TILES = (
    *(Sizes(2, 4, 2, 5, 70, 128, 64), Sizes(2, 4, 2, 3, 70, 64, 128), Sizes(2, 2, 2, 4, 130, 128, 128)),
    *(Sizes(2, 4, 2, 2, 70, 128, 96), Sizes(3, 2, 2, 6, 80, 64, 64)),
)
"""Widths for which kernels are made, and more than one tile of keys."""


def kernel_cases(operation: str, declaration: Declaration) -> st.SearchStrategy[Case]:
    """Cases of an operation in the sizes for which kernels read arrays in their own way, mostly with all arrays."""
    if is_norm(operation):
        from conformance.sampling.layers import NORM_SHAPES, VECTOR_WIDTHS

        return operation_cases(operation, DTYPES, declaration, plans=(*NORM_SHAPES, *VECTOR_WIDTHS))
    if not operation.startswith("attention"):
        return operation_cases(operation, DTYPES, declaration)
    plans = (*SHORT[:2], *KERNEL_WIDTHS, *KERNEL_TILES)
    cases = partial(generation.attention_cases, operation, plans=plans, declaration=declaration)
    if not {"bias", "dense"} & declaration.features:
        return cases()
    every = cases("dense" if "dense" in declaration else "none", tuple({"bias"} & declaration.features))
    return st.integers(0, 2).flatmap(lambda which: every if which < 2 else cases())
