"""Which features of a declaration a case uses, and the rules that speak of them."""

from __future__ import annotations

from typing import Any

from conformance.cases import Case
from conformance.declaration import Declaration
from specification import Causal, KeyLengths, KeyPadding, Segments, SlidingWindow
from specification.masks import And, Or

KINDS = {
    Causal: "causal",
    SlidingWindow: "window",
    KeyLengths: "lengths",
    KeyPadding: "padding",
    Segments: "segments",
}

FEATURE_RULES = {
    "causal": "MASK-3",
    "window": "MASK-4",
    "lengths": "MASK-2",
    "padding": "MASK-2",
    "segments": "MASK-2",
    "dense": "MASK-1",
    "scale": "ATT-1",
    "softcap": "ATT-2",
    "bias": "ATT-3",
    "sinks": "ATT-5",
    "dropout": "ATT-11",
    "empty_rows": "ATT-6",
    "gqa": "ATT-7",
    "cross": "ATT-8",
    "value_width": "ATT-8",
    "empty": "ATT-8",
    "gradients": "ATT-12",
}
"""The rule that says how each feature of attention works."""

OPERATION_RULES = {
    "layer_norm": {"dtype": "NORM-2", "gradients": "NORM-6"},
    "rms_norm": {"": "NORM-7"},
    "standard_deviation_norm": {"": "NORM-7"},
    "multi_head_attention": {"": "MHA-1"},
    "merge_attention": {"": "ATT-14"},
    "sinusoidal_positions": {"": "POS-1"},
    "learned_positions": {"": "POS-2"},
    "embedding": {"": "EMB-1"},
    "feed_forward": {"": "FFN-1"},
}
"""For other operations: the rule for their dtypes, their gradients, and anything else."""


def rule_of(feature: str, operation: str) -> str:
    """The rule that a subject breaks which claims the feature and lacks it."""
    if operation not in OPERATION_RULES:
        return FEATURE_RULES.get(feature, "ATT-9")
    rules = OPERATION_RULES[operation]
    return rules.get(feature, rules.get("", "NORM-1"))


def features_of(case: Case) -> set[str]:
    """Names of `declaration.FEATURES`."""
    features = mask_kinds(case.options.get("mask"))
    if case.operation.startswith("attention") or case.operation == "multi_head_attention":
        features |= {"bias", "sinks"} & set(case.inputs)
    features |= {name for name in ("scale", "softcap", "empty_rows") if case.options.get(name) is not None}
    if case.options.get("dropout_keep") is not None:
        features.add("dropout")
    if case.cotangents:
        features.add("gradients")
    if any(0 in array.shape for array in case.inputs.values()):
        features.add("empty")
    if case.operation.startswith("attention"):
        query, key = case.inputs["query"], case.inputs["key"]
        features |= {"gqa"} if query.shape[1] != key.shape[1] else set()
        features |= {"cross"} if query.shape[2] != key.shape[2] else set()
        value = case.inputs.get("value")
        features |= {"value_width"} if value is not None and value.shape[-1] != key.shape[-1] else set()
    return features


def mask_kinds(mask: Any) -> set[str]:
    if mask is None:
        return set()
    if isinstance(mask, And | Or):
        return mask_kinds(mask.left) | mask_kinds(mask.right)
    return {KINDS.get(type(mask), "dense")}


def within(case: Case, declaration: Declaration) -> bool:
    """Whether the subject takes such a case."""
    if case.dtype not in declaration.dtypes or not features_of(case) <= declaration.features:
        return False
    names = {"attention": ("query", "value"), "attention_weights": ("query",), "attention_logsumexp": ("query",)}
    widths = [case.inputs[name].shape[-1] for name in names.get(case.operation, ())]
    return all(width % declaration.width_multiple == 0 for width in widths)
