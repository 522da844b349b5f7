"""Gradients clipped by their norm: all arrays scaled by one number, where the norm of all exceeds a limit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.adam_step import PLAN
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.optimizers import FAR_BELOW, LIST_SHAPES, clip_cases
from conformance.sampling.plan.covering import Row

NAME = "clip_by_global_norm"


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(clip_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), (0.1, 0.5), plans=(((row["rows"],), (3, 2)),))

    usual = ("usual", "small", "uneven")
    return [
        agreement("OPT-3", "clip", NAME, drawn(usual), weight=1.5),
        agreement("OPT-3", "norms below the limit", NAME, drawn(usual, (1.1, 2.0, 10.0, np.inf))),
        agreement("OPT-3", "small norms", NAME, drawn(("small",), (0.1, 0.5), dtypes=("float32", "float64"))),
        agreement("OPT-3", "several arrays", NAME, drawn(("uneven",), (0.1, 0.5, 0.9), plans=LIST_SHAPES[:3])),
        agreement("OPT-3", "no gradient", NAME, drawn(("zeros",)), weight=0.5),
        agreement("OPT-3", "huge and tiny gradients", NAME, drawn(("huge", "tiny")), level=ROBUST),
        agreement(
            "OPT-3", "limits far below the norm", NAME, drawn(("huge",), FAR_BELOW, dtypes=("float32",)), 0.5, ROBUST
        ),
        agreement("OPT-3", "NaN and infinity in gradients to clip", NAME, drawn(usual, special=True), 0.5, ROBUST),
        agreement("OPT-3", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    def make_refusal(title: str, error: type[Exception], inputs: dict[str, Any], limit: float = 1.0) -> Refusal:
        return array.refusal("OPT-3", title, error, NAME, inputs, limit=limit)

    gradients = {"gradients[0]": array(2, 3), "gradients[1]": array(5)}
    yield make_refusal("a limit of 0", ValueError, gradients, 0.0)
    yield make_refusal("gradients of integers", TypeError, gradients | {"gradients[1]": np.array([1, 2])})
    yield make_refusal("no gradients", ValueError, {})


OPERATION = JudgedOperation(NAME, probes, refusals)
