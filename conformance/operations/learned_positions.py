"""Learned positions: the first rows of a table, or those from an offset on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance.bounds import operations as bounds
from conformance.cases.axes import OFFSET, Described
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis import lookups
from conformance.diagnosis.matching import instead
from conformance.diagnosis.options import options
from conformance.operations.common import rows_of_layers
from conformance.oracle.reference import lookup_work
from conformance.runner.shrinking import Change
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import MODEL_WIDTHS, POSITIONS, VOCABULARIES

NAME = "learned_positions"
PLAN = Plan(
    values={"length": POSITIONS, "vocabulary": VOCABULARIES, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "vocabulary": (5, 1000, 65537), "model_width": (5, 320, 5000)},
)


def shape(case: Case, name: str, layout: str) -> Shape:
    return (case.options["length"], case.inputs["table"].shape[-1])


def dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"length": case.options["length"], "vocabulary": vocabulary, "model_width": width}


def axes(case: Case) -> Described:
    (positions, width), given = case.inputs["table"].shape, case.options
    sizes = {"length": given["length"], OFFSET: given.get(OFFSET) or 0, "vocabulary": positions, "E": width}
    return sizes, {"table": (("vocabulary",), ("E",)), "-> output": (("length",), ("E",))}, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.lookup_cases, NAME, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return cases(plans=((row["vocabulary"], row["model_width"], (row["length"],)),))

    return [
        agreement("POS-2", "learned", NAME, cases(), weight=2.0),
        agreement("POS-2", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    table = {"table": array(4, 3)}
    yield array.refusal("POS-2", "a position past the table", ValueError, NAME, table, length=5)


def moved(by: int) -> Change:
    """From another position on; None where that is outside the table."""

    def change(case: Case) -> Case | None:
        offset = (case.options.get(OFFSET) or 0) + by
        inside = 0 <= offset <= len(case.inputs["table"]) - case.options["length"]
        return replace(case, options=case.options | {OFFSET: offset}) if inside else None

    return change


OPERATION = Operation(
    name=NAME,
    rules={"": "POS-2"},
    arguments=("table", "length"),
    differentiated=("table",),
    copies=True,
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
        instead("the offset is ignored", options(offset=0)),
        *(
            instead(f"rows are read from one position too {name}", moved(by))
            for name, by in (("early", -1), ("late", 1))
        ),
    ),
    measured=lookups.measured,
    row_sums=lookups.row_sums,
)
