"""Sinusoidal positions: sines and cosines of the position, in wavelengths from 2 pi to 10000 * 2 pi."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from hypothesis import strategies as st

from conformance.bounds import operations as bounds
from conformance.cases.axes import OFFSET, Described
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import sinusoidal_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.diagnosis.matching import Mistake, computed, instead
from conformance.diagnosis.options import options
from conformance.operations.common import rows_of_layers
from conformance.oracle.reference import oracle, sinusoidal_work
from conformance.sampling import strategies as generation
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import MODEL_WIDTHS, POSITIONS

NAME = "sinusoidal_positions"
PLAN = Plan(
    values={"length": POSITIONS, "model_width": MODEL_WIDTHS},
    typical={"length": (5, 129, 65537), "model_width": (5, 320, 5000)},
)


def shape(case: Case, name: str, layout: str) -> Shape:
    return (case.options["length"], case.options["width"])


def dimensions(case: Case) -> dict[str, int]:
    return {"length": case.options["length"], "model_width": case.options["width"]}


def axes(case: Case) -> Described:
    given = case.options
    return {"length": given["length"], "E": given["width"], OFFSET: given.get(OFFSET) or 0}, {}, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.sinusoidal_cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return cases(plan=(row["length"], row["model_width"]))

    return [
        agreement("POS-1", "sinusoidal", NAME, cases(), weight=1.7),
        agreement("POS-1", "far positions", NAME, cases(offsets=(10_007, 20_011)), weight=0.5),
        agreement("POS-1", "sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"length": 3, "width": 4, "exponent": "one"}
    yield array.refusal("POS-1", "an unknown exponent", ValueError, NAME, {}, **given)


def columns(name: str, order: Callable[[int], np.ndarray]) -> Mistake:
    """The right columns in another order; `order` gets the width."""
    return computed(name, lambda case: oracle(case)["output"].high[:, order(case.options["width"])])


def halves(width: int) -> np.ndarray:
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


def swapped(width: int) -> np.ndarray:
    return np.minimum(np.arange(width) ^ 1, width - 1)


def from_one(case: Case) -> Case | None:
    return options(offset=case.options.get("offset", 0) + 1)(case)


OPERATION = Operation(
    name=NAME,
    rules={"": "POS-1"},
    arguments=("length", "width"),
    differentiated=(),
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds.sinusoidal_positions,
    work=sinusoidal_work,
    cases=generation.sinusoidal_cases,
    probes=probes,
    refusals=refusals,
    histories=sinusoidal_histories,
    mistakes=(
        columns("all sines come first, then all cosines", halves),
        columns("sine and cosine are swapped", swapped),
        instead("the offset is ignored", options(offset=0)),
        instead("the other exponent is used (doubled)", options(exponent="doubled")),
        instead("the other exponent is used (shared)", options(exponent="shared")),
        instead("positions count from 1", from_one),
    ),
)
