"""Adam: a step of every parameter, by moving averages of its gradient and of the gradient's square."""

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
from conformance.operations.common import rows_of_layers
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling.optimizers import LATE, adam_cases
from conformance.sampling.plan.covering import ROWS, Row
from conformance.sampling.plan.layers import Plan
from specification.dtypes import compute_dtype_name

NAME = "adam_step"
PLAN = Plan(values={"rows": ROWS}, typical={"rows": (3, 130, 65537)})


def probes(declaration: Declaration) -> list[Probe]:
    drawn = partial(adam_cases, declaration=declaration)

    def row_cases(row: Row) -> st.SearchStrategy[Case]:
        return drawn(("usual",), plans=((row["rows"],),))

    decay = {"weight_decay": (0.3, 0.1)}
    return [
        agreement("OPT-1", "adam", NAME, drawn(), weight=2.0),
        agreement("OPT-1", "first steps", NAME, drawn(("usual", "small"), (0, 1)), weight=1.5),
        agreement("OPT-1", "late steps", NAME, drawn(("usual",), LATE)),
        agreement("OPT-1", "gradients as small as eps", NAME, drawn(("small",), options={"eps": (1e-8, 1e-7)})),
        agreement("OPT-1", "weight decay", NAME, drawn(("usual", "small"), options=decay), weight=1.5),
        agreement("OPT-1", "zero gradients", NAME, drawn(("zeros",))),
        agreement("OPT-1", "huge and vanishing squares", NAME, drawn(("large", "vanishing")), level=ROBUST),
        agreement(
            "OPT-1", "NaN and infinity in gradients of adam_step", NAME, drawn(("usual",), special=True), 0.8, ROBUST
        ),
        agreement("OPT-1", "sizes", NAME, rows_of_layers(PLAN, row_cases, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    wide = compute_dtype_name(array.dtype)

    def make_refusal(title: str, error: Kind, changes: dict[str, Any], **options: Any) -> Refusal:
        inputs = {"parameters": array(2, 3), "gradients": array(2, 3)} | dict.fromkeys(
            ("mean", "square"), np.abs(array(2, 3, dtype=wide))
        )
        given = {"step": 3, "learning_rate": 0.1} | options
        return array.refusal("OPT-1", title, error, NAME, inputs | changes, **given)

    yield make_refusal("gradients of another shape", ValueError, {"gradients": array(3, 2)})
    yield make_refusal("a mean of another shape", ValueError, {"mean": array(3, dtype=wide)})
    yield make_refusal("parameters of integers", TypeError, {"parameters": np.ones((2, 3), int)})
    yield make_refusal("a negative learning rate", ValueError, {}, learning_rate=-0.1)
    yield make_refusal("beta_2 of 1", ValueError, {}, beta_2=1.0)
    yield make_refusal("eps 0", ValueError, {}, eps=0.0)
    yield make_refusal("a negative step", ValueError, {}, step=-1)


OPERATION = JudgedOperation(NAME, probes, refusals)
