"""Attention, its companions, and multi-head attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from conformance.cases.arrays import heads_and_keys, list_arrays, masked_dimensions, widths_of
from conformance.cases.axes import HEADS, PAIRS, Arrays, Axis, B, D, Described, K, Q, V
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Shape, Structure
from specification import MultiHeadAttention

FEATURE_RULES = {
    "causal": "MASK-3",
    "window": "MASK-4",
    "offset": "MASK-3",
    "lengths": "MASK-2",
    "padding": "MASK-2",
    "segments": "MASK-2",
    "dense": "MASK-1",
    "combined": "MASK-6",
    "or": "MASK-6",
    "scale": "ATT-1",
    "softcap": "ATT-2",
    "bias": "ATT-3",
    "sinks": "ATT-5",
    "alibi_slopes": "ATT-3",
    "query_lengths": "MASK-2",
    "dropout": "ATT-11",
    "empty_rows": "ATT-6",
    "gqa": "ATT-7",
    "cross": "ATT-8",
    "value_width": "ATT-8",
    "empty": "ATT-8",
    "gradients": "ATT-12",
    "logsumexp": "ATT-14",
    "": "ATT-9",
}
"""The rule that says how each feature of attention works."""


def attention_shape(case: Case, name: str, layout: str) -> Shape:
    query = case.inputs["query"].shape
    if name == "logsumexp":
        return query[:3] if layout == "BHTD" else (query[0], query[2], query[1])
    return (*query[:-1], case.inputs["value"].shape[-1])


def weights_shape(case: Case, name: str, layout: str) -> Shape:
    query, key = case.inputs["query"].shape, case.inputs["key"].shape
    heads, length = (1, 2) if layout == "BHTD" else (2, 1)
    return query[0], query[heads], query[length], key[length]


def logsumexp_shape(case: Case, name: str, layout: str) -> Shape:
    return weights_shape(case, name, layout)[:3]


def attention_axes(case: Case, output: tuple[Axis, ...] = (B, HEADS, Q, V)) -> Described:
    (batch, H, queries, width), (_, G, keys, _) = case.inputs["query"].shape, case.inputs["key"].shape
    sizes = {"B": batch, "G": G, "S": H // max(G, 1), "Q": queries, "K": keys, "D": width}
    if "value" in case.inputs:
        sizes["V"] = case.inputs["value"].shape[-1]
    arrays = {"query": (B, HEADS, Q, D), "key": (B, ("G",), K, D), "value": (B, ("G",), K, V), "sinks": (HEADS,)}
    arrays |= {"alibi_slopes": (B, HEADS), "query_lengths": (B,)}
    arrays |= {"bias": PAIRS, "option dropout_keep": PAIRS, "-> output": output, "-> logsumexp": PAIRS[:3]}
    return sizes, arrays, {}


ATTENTION = OperationFacts(
    name="attention",
    rules=FEATURE_RULES,
    arguments=("query", "key", "value"),
    differentiated=("query", "key", "value", "bias", "sinks"),
    masked=True,
    wide=("logsumexp", "alibi_slopes"),
    positive=("alibi_slopes",),
    shape=attention_shape,
    dimensions=masked_dimensions,
    axes=attention_axes,
)
ATTENTION_WEIGHTS = replace(
    ATTENTION,
    name="attention_weights",
    arguments=("query", "key"),
    differentiated=("query", "key", "bias", "sinks"),
    wide=("alibi_slopes",),
    shape=weights_shape,
    axes=partial(attention_axes, output=PAIRS),
)
ATTENTION_LOGSUMEXP = replace(
    ATTENTION_WEIGHTS,
    name="attention_logsumexp",
    wide=("output", "alibi_slopes"),
    shape=logsumexp_shape,
    axes=partial(attention_axes, output=PAIRS[:3]),
)


def merged_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["outputs[0]" if name == "output" else "logsumexps[0]"].shape


def merged_dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("batch", "heads", "queries", "value_width"), case.inputs["outputs[0]"].shape, strict=True))


def merged_axes(case: Case) -> Described:
    batch, heads, queries, width = case.inputs["outputs[0]"].shape
    sizes = {"parts": len(list_arrays(case.inputs, "outputs")), "B": batch, "H": heads, "Q": queries, "V": width}
    outputs, sums = (B, ("H",), Q, V), (B, ("H",), Q)
    arrays: Arrays = {"outputs": outputs, "logsumexps": sums}
    lists: dict[str, Axis] = {"outputs": ("parts",), "logsumexps": ("parts",)}
    return sizes, arrays | {"-> output": outputs, "-> logsumexp": sums}, lists


MERGE_ATTENTION = OperationFacts(
    name="merge_attention",
    rules={"": "ATT-14"},
    arguments=("outputs", "logsumexps"),
    differentiated=("outputs", "logsumexps"),
    results=("output", "logsumexp"),
    lists=("outputs", "logsumexps"),
    wide=("logsumexps", "logsumexp"),
    shape=merged_shape,
    dimensions=merged_dimensions,
    axes=merged_axes,
)


def multi_head_shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["query"].shape[:-1], case.inputs["output.weight"].shape[-1])


def multi_head_dimensions(case: Case) -> dict[str, int]:
    return masked_dimensions(case) | {"model_width": case.inputs["query"].shape[-1]}


def multi_head_axes(case: Case) -> Described:
    (H, G, queries, keys), (width, value_width) = heads_and_keys(case), widths_of(case)
    inputs, outer = case.inputs, case.inputs["output.weight"].shape[-1]
    sizes = {"B": inputs["query"].shape[0], "G": G, "S": H // max(G, 1), "Q": queries, "K": keys}
    sizes |= {"D": width, "V": value_width, "E": inputs["query"].shape[-1], "output": outer}
    sizes |= {"E of key": inputs["key"].shape[-1], "E of value": inputs["value"].shape[-1]}
    columns = {"query": (("E",), Q, (*HEADS, "D")), "key": (("E of key",), K, ("G", "D"))}
    columns |= {"value": (("E of value",), K, ("G", "V"))}
    arrays: Arrays = {"sinks": (HEADS,), "bias": PAIRS, "option dropout_keep": PAIRS}
    lists: dict[str, Axis] = {}
    for name, (model, length, heads) in columns.items():
        separate = f"{name}.weight" not in inputs
        lists |= {name: heads[:-1]} if separate else {}
        outside = heads[-1:] if separate else heads
        arrays |= {name: (B, length, model), f"{name}.weight": (model, outside), f"{name}.bias": (outside,)}
    arrays |= {"output.weight": ((*HEADS, "V"), ("output",)), "output.bias": (("output",),)}
    return sizes, arrays | {"-> output": (B, Q, ("output",))}, lists


MULTI_HEAD_ATTENTION = OperationFacts(
    name="multi_head_attention",
    rules={"": "MHA-1"},
    arguments=("parameters", "query", "key", "value"),
    differentiated=("parameters", "query", "key", "value", "bias", "sinks"),
    structure=Structure(MultiHeadAttention, ("query", "key", "value", "output")),
    masked=True,
    shape=multi_head_shape,
    dimensions=multi_head_dimensions,
    axes=multi_head_axes,
)
