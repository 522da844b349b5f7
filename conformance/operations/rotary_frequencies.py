"""Frequencies of rotary embeddings, and the factor of sine and cosine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

from conformance.bounds import rotary as bounds_of
from conformance.bounds.arithmetic import Approx, Precision
from conformance.cases.axes import Described
from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.operation import Operation, Shape
from conformance.checks.histories import plain_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.diagnosis import rotary as mistakes
from conformance.operations.common import rows_of_layers
from conformance.sampling.plan.covering import Row
from conformance.sampling.plan.layers import Plan
from conformance.sampling.plan.values import MODEL_WIDTHS
from conformance.sampling.rotary import SCALED, frequency_cases
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling

NAME = "rotary_frequencies"
PLAN = Plan(
    values={"model_width": tuple(width for width in MODEL_WIDTHS if width % 2 == 0)},
    typical={"model_width": (8, 128, 1000)},
)


def work(passes: int, gradients: bool, *, width: int) -> int:
    return width * 100


def shape(case: Case, name: str, layout: str) -> Shape:
    return () if name == "attention_factor" else (case.options["width"] // 2,)


def dimensions(case: Case) -> dict[str, int]:
    return {"model_width": case.options["width"]}


def axes(case: Case) -> Described:
    return {"E": case.options["width"]}, {}, {}


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(frequency_cases, declaration=declaration)

    def at_size(row: Row) -> st.SearchStrategy[Case]:
        return cases(("none",), widths=(row["model_width"],))

    return [
        agreement("POS-4", "frequencies", NAME, cases(("none",))),
        *(agreement("POS-4", f"{kind} frequencies", NAME, cases((kind,)), 1.5) for kind in SCALED),
        agreement("POS-4", "frequencies, sizes", NAME, rows_of_layers(PLAN, at_size, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def refused(title: str, error: Kind, **given: Any) -> Refusal:
        return array.refusal("POS-4", title, error, NAME, {}, **{"width": 8, "base": 10000.0} | given)

    ramp = Llama3Scaling(factor=8.0, low_frequency_factor=4.0, high_frequency_factor=1.0, original_length=8192)
    yield refused("frequencies of an odd width", ValueError, width=7)
    yield refused("a base below 1", ValueError, base=0.5)
    yield refused("a scaling of another kind", TypeError, scaling={"factor": 2.0})
    yield refused("a factor below 1", ValueError, scaling=LinearScaling(factor=0.25))
    yield refused("a factor that is NaN", ValueError, scaling=LinearScaling(factor=float("nan")))
    yield refused("a low factor above the high one", ValueError, scaling=ramp)
    narrow = DynamicScaling(factor=2.0, original_length=8)
    yield refused("a dynamic scaling of one pair", ValueError, width=2, scaling=narrow)


def bounds(case: Case, p: Precision) -> dict[str, Approx]:
    """As `bounds/rotary.py` derives them."""
    call, unit = bounds_of.call_of(case), bounds_of.SINGLE if p.single_angles else p.inner
    return {
        "frequencies": bounds_of.frequencies(call, unit, p.single_angles),
        "attention_factor": bounds_of.factor(call.scaling, p.inner),
    }


OPERATION = Operation(
    name=NAME,
    rules=dict.fromkeys(("", "rotary_scaling"), "POS-4"),
    arguments=("width",),
    differentiated=(),
    results=("frequencies", "attention_factor"),
    numbers=("attention_factor",),
    single=("frequencies",),
    width_unit=2,
    shape=shape,
    dimensions=dimensions,
    axes=axes,
    bounds=bounds,
    work=work,
    cases=frequency_cases,
    probes=probes,
    refusals=refusals,
    histories=plain_histories,
    mistakes=mistakes.OF_FREQUENCIES,
)
