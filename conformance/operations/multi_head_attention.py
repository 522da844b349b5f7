"""Multi-head attention: projections, attention in every head, and one more projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.bounds import operations as bounds
from conformance.cases.axes import HEADS, PAIRS, Arrays, Axis, B, Described, K, Q
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.features import heads_and_keys, masked_dimensions, widths_of
from conformance.cases.operation import Operation, Shape, Structure
from conformance.cases.sizes import Sizes, adapted
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis import multi_head
from conformance.operations.common import rows_of
from conformance.oracle.reference import multi_head_work
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.strategies import SHORT
from specification import MultiHeadAttention

NAME = "multi_head_attention"
SIZES = Sizes(B=2, H=2, G=2, Q=3, K=5, D=4, V=4)
"""Of calls that must be refused."""
SQUARE = Sizes(B=2, H=3, G=3, Q=5, K=7, D=4, V=4)
"""Of projections with as many rows as columns, as most models have, so that a transposed one fits too."""
MODELS = (
    *((65, 5, 4, 3), (6, 129, 4, 3), (6, 5, 257, 3), (6, 5, 4, 576), (33, 33, 33, 33)),
    *((1025, 40, 24, 1025), (300, 70, 6, 5), (2000, 7, 300, 40)),
)
"""Widths of query, key, value and output."""


def shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["query"].shape[:-1], case.inputs["output.weight"].shape[-1])


def dimensions(case: Case) -> dict[str, int]:
    return masked_dimensions(case) | {"model_width": case.inputs["query"].shape[-1]}


def axes(case: Case) -> Described:
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


def either(**given: Any) -> st.SearchStrategy[Case]:
    """Cases with projections that are fused or, as often, one for every head."""
    return st.booleans().flatmap(lambda separate: generation.multi_head_cases(separate=separate, **given))


def probes(declaration: Declaration) -> list[Probe]:
    heads = partial(generation.multi_head_cases, declaration=declaration)

    def planned(rule: str, plan: str) -> Rows:
        return rows_of(partial(heads, separate=rule == "MHA-2"), plan, rule, declaration, few_columns)

    return [
        agreement("MHA-1", "fused projections", NAME, heads(), weight=2.0),
        agreement("MHA-1", "square weights", NAME, heads(plans=(SQUARE,), model_widths=(SQUARE.H * SQUARE.D,) * 4)),
        agreement("MHA-2", "separate heads", NAME, heads(separate=True), weight=2.0),
        *(
            agreement(rule, plan, NAME, planned(rule, plan))
            for rule in ("MHA-1", "MHA-2")
            for plan in ("heads", "widths")
        ),
        *(
            agreement(rule, "model widths", NAME, wide_models(declaration, rule == "MHA-2"), 2.0)
            for rule in ("MHA-1", "MHA-2")
        ),
    ]


def wide_models(declaration: Declaration, separate: bool) -> Rows:
    limit = declaration.limits.get("model_width", max(map(max, MODELS)))
    widths = dict.fromkeys((min(a, limit), min(b, limit), min(c, limit), min(d, limit)) for a, b, c, d in MODELS)
    cases = partial(generation.multi_head_cases, separate, plans=SHORT, declaration=declaration)
    return Rows(lambda: tuple(cases(model_widths=model) for model in widths))


def few_columns(s: Sizes) -> bool:
    """Whether the projections of so many heads have no more columns than models have."""
    return s.H <= 128 and s.H * (s.D + s.V) <= 2**14


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    (B, H, G, Q, K, D, V), E = adapted(SIZES, declaration), 6
    inputs = {"query": array(B, Q, E), "key": array(B, K, E), "value": array(B, K, E)}
    inputs |= {"query.weight": array(E, H * D), "key.weight": array(E, G * D), "value.weight": array(E, G * V)}
    inputs["output.weight"] = array(H * V, E)
    if H * D % 3:
        yield array.refusal("MHA-1", "3 heads of 8 columns", ValueError, NAME, inputs, num_heads=3)
    transposed = inputs | {"query.weight": array(H * D, E)}
    yield array.refusal("MHA-1", "weight [out, in]", ValueError, NAME, transposed, num_heads=H)
    wider = inputs | {"value.weight": array(E, G * (V + 1))}
    yield array.refusal("MHA-2", "an output for other widths", ValueError, NAME, wider, num_heads=H)


OPERATION = Operation(
    name=NAME,
    rules={"": "MHA-1"},
    arguments=("parameters", "query", "key", "value"),
    differentiated=("parameters", "query", "key", "value", "bias", "sinks"),
    structure=Structure(MultiHeadAttention, ("query", "key", "value", "output")),
    masked=True,
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds.multi_head_attention,
    work=multi_head_work,
    cases=either,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=multi_head.MISTAKES,
)
