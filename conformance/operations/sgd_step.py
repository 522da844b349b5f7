"""Gradient descent with momentum: a step of every parameter."""

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
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations.adam_step import PLAN
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.optimizers import sgd_cases
from conformance.sampling.plan.covering import Row
from specification.dtypes import compute_dtype_name

NAME = "sgd_step"


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(sgd_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), plans=((row["rows"],),))

    momentum = {"momentum": (0.9, 0.5)}
    return [
        agreement("OPT-2", "sgd", NAME, drawn(), weight=1.5),
        agreement("OPT-2", "momentum", NAME, drawn(("usual",), options=momentum | {"nesterov": (False,)})),
        agreement("OPT-2", "nesterov", NAME, drawn(("usual",), options=momentum | {"nesterov": (True,)})),
        agreement("OPT-2", "the first step", NAME, drawn(("zeros",), options=momentum)),
        agreement("OPT-2", "weight decay", NAME, drawn(("usual",), options={"weight_decay": (0.3, 0.1)})),
        agreement(
            "OPT-2", "NaN and infinity in gradients of sgd_step", NAME, drawn(("usual",), special=True), 0.5, ROBUST
        ),
        agreement("OPT-2", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def make_refusal(title: str, error: Kind, changes: dict[str, Any], **options: Any) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3), "velocity": array(2, 3, dtype=wide)}
        given = {"learning_rate": 0.1} | options
        return array.refusal("OPT-2", title, error, NAME, inputs | changes, **given)

    yield make_refusal("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield make_refusal("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield make_refusal("a momentum of 1", ValueError, {}, momentum=1.0)
    yield make_refusal("nesterov without momentum", ValueError, {}, nesterov=True)


OPERATION = JudgedOperation(NAME, probes, refusals)
