"""Layer norm by the unbiased standard deviation, to which eps is added."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import CONSTANT_ROWS
from conformance.checks.histories import norm_histories
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.judged_operation import JudgedOperation
from conformance.operations.layer_norm import norm_rows
from conformance.sampling import special
from conformance.sampling import strategies as generation

NAME = "standard_deviation_norm"


def probes(declaration: Declaration) -> list[Probe]:
    constant = partial(special.constant_rows, NAME, declaration=declaration)
    gradients = constant(gradients=True, focus=("gradients",))
    return [
        agreement("NORM-7", NAME, NAME, generation.norm_cases(NAME, declaration=declaration), weight=2.0),
        Probe("NORM-7", f"constant rows of {NAME}", (NAME,), constant(), CONSTANT_ROWS, 1.5),
        agreement("NORM-7", f"gradients in constant rows of {NAME}", NAME, gradients, weight=0.5, level=ROBUST),
        agreement("NORM-7", f"{NAME}, sizes", NAME, norm_rows(NAME, NAME, declaration)),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    row = {"x": array(3, 1), "weight": array(1)} | ({} if "bias" in declaration.lacking else {"bias": array(1)})
    yield array.refusal("NORM-7", "the unbiased deviation of one element", ValueError, NAME, row, eps=1e-6)


OPERATION = JudgedOperation(NAME, probes, refusals, norm_histories)
