"""Attention over parts of the keys, merged by the log-sum-exps of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.bounds import operations as bounds
from conformance.cases.arguments import listed
from conformance.cases.axes import Arrays, Axis, B, Described, Q, V
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.catalogue import TWIN
from conformance.checks.histories import plain_histories
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis import merging
from conformance.operations.common import Cases, rows_of
from conformance.oracle.reference import merge_work
from conformance.sampling import special
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.strategies import SHORT
from specification.dtypes import HALF

NAME = "merge_attention"
MANY_PARTS = (5, 8, 9, 16, 17, 33, 64, 65, 129)


def shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["outputs[0]" if name == "output" else "logsumexps[0]"].shape


def dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("batch", "heads", "queries", "value_width"), case.inputs["outputs[0]"].shape, strict=True))


def axes(case: Case) -> Described:
    batch, heads, queries, width = case.inputs["outputs[0]"].shape
    sizes = {"parts": len(listed(case.inputs, "outputs")), "B": batch, "H": heads, "Q": queries, "V": width}
    outputs, sums = (B, ("H",), Q, V), (B, ("H",), Q)
    arrays: Arrays = {"outputs": outputs, "logsumexps": sums}
    lists: dict[str, Axis] = {"outputs": ("parts",), "logsumexps": ("parts",)}
    return sizes, arrays | {"-> output": outputs, "-> logsumexp": sums}, lists


def probes(declaration: Declaration) -> list[Probe]:
    merges = partial(generation.merge_cases, declaration=declaration)
    return [
        Probe("MASK-7", f"hidden in {NAME}", (NAME,), special.hidden_cases(NAME, declaration), TWIN, weight=0.8),
        agreement("ATT-14", "merge", NAME, merges(), weight=1.5),
        agreement("ATT-14", "merge of far parts", NAME, merges(("float32", *HALF), (2, 3, 4), 100.0), 0.5, ROBUST),
        agreement("ATT-14", "merge in 16 bits", NAME, merges(HALF, (3, 4)), weight=0.5),
        agreement("ATT-14", "merge, sizes", NAME, rows_of(merges, "merges", "merge", declaration)),
        agreement("ATT-14", "merge of many parts", NAME, of_many_parts(merges, declaration)),
    ]


def of_many_parts(merges: Cases, declaration: Declaration) -> Rows:
    """Where shapes are compiled, two numbers of parts stand for all."""
    counts = (9, 65) if declaration.compiled else MANY_PARTS
    return Rows(lambda: tuple(merges(parts=(count,), plans=SHORT) for count in counts))


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    parts = {"outputs[0]": array(2, 4, 3, 7), "logsumexps[0]": array(2, 4, 5)}
    yield array.refusal("ATT-14", "parts that do not match", ValueError, NAME, parts)


OPERATION = Operation(
    name=NAME,
    rules={"": "ATT-14"},
    arguments=("outputs", "logsumexps"),
    differentiated=("outputs", "logsumexps"),
    results=("output", "logsumexp"),
    lists=("outputs", "logsumexps"),
    wide=("logsumexps", "logsumexp"),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds.merge_attention,
    work=merge_work,
    cases=generation.merge_cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=merging.MISTAKES,
)
