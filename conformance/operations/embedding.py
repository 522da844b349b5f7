"""Embedding: a row of a table for every token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import operations as bounds
from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Rows, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import lookups
from conformance.diagnosis.matching import instead
from conformance.diagnosis.options import options
from conformance.operations.common import rows_of_layers
from conformance.oracle.reference import lookup_work
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import MODEL_WIDTHS, ROWS, VOCABULARIES
from specification.dtypes import HALF

NAME = "embedding"
PLAN = Plan(
    values={"rows": ROWS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"rows": (3, 130, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
)


def shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["ids"].shape, case.inputs["table"].shape[-1])


def dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"rows": case.inputs["ids"].size, "vocabulary": vocabulary, "model_width": width}


def axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["ids"], 0)
    vocabulary, width = case.inputs["table"].shape
    sizes |= {"vocabulary": vocabulary, "E": width}
    return sizes, {"table": (("vocabulary",), ("E",)), "ids": rows, "-> output": (*rows, ("E",))}, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.lookup_cases, NAME, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["rows"],)),))

    return [
        agreement("EMB-1", "embedding", NAME, cases(), weight=2.0),
        agreement("EMB-1", "rows of 16 bits scaled", NAME, cases((True,), HALF), weight=0.5),
        agreement("EMB-1", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def refused(title: str, error: Kind, ids: np.ndarray) -> Refusal:
        return array.refusal("EMB-1", title, error, NAME, {"table": array(4, 3), "ids": ids})

    yield refused("an id past the vocabulary", ValueError, np.array([0, 4]))
    yield refused("a negative id", ValueError, np.array([0, -1]))
    yield refused("ids that are no integers", TypeError, array(2))


OPERATION = Operation(
    name=NAME,
    rules={"": "EMB-1"},
    arguments=("table", "ids"),
    differentiated=("table",),
    copies=True,
    rows=Rows("ids", lambda case: 0),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds.lookup,
    work=lookup_work,
    cases=partial(generation.lookup_cases, NAME),
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=(
        *lookups.MISTAKES,
        instead("rows are multiplied by sqrt(E) though not asked", options(scaled=True)),
        instead("rows are not multiplied by sqrt(E)", options(scaled=False)),
    ),
    measured=lookups.measured,
    row_sums=lookups.row_sums,
)
