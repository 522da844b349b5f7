"""RMS norm: layer norm without the mean."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.cases.declaration import Declaration
from conformance.checks.histories import norm_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.judged_operation import JudgedOperation
from conformance.operations.layer_norm import norm_rows, spoiled_probe
from conformance.sampling import strategies as generation
from specification.dtypes import HALF

NAME = "rms_norm"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.norm_cases, NAME, declaration=declaration)
    planned = partial(norm_rows, NAME, declaration=declaration)
    graded = ("gradients",)
    return [
        spoiled_probe(NAME, declaration),
        agreement("NORM-7", NAME, NAME, cases(gradients=False), weight=2.0),
        *one_more(declaration),
        agreement("NORM-6", f"gradients of {NAME}", NAME, cases(focus=graded), weight=2.0),
        agreement("NORM-7", f"{NAME}, sizes", NAME, planned(NAME, large=2, gradients=False)),
        agreement("NORM-6", f"gradients of {NAME}, sizes", NAME, planned(f"gradients of {NAME}", focus=graded)),
    ]


def one_more(declaration: Declaration) -> list[Probe]:
    """1 + weight, where the subject has an option for it."""
    if "plus_one" in declaration.lacking:
        return []
    cases = partial(generation.norm_cases, NAME, plus_one=(True,), declaration=declaration)
    return [
        agreement("NORM-8", "1 + weight", NAME, cases(gradients=False), weight=2.0),
        agreement("NORM-8", "1 + weight in 16 bits", NAME, cases(gradients=False, dtypes=HALF), weight=0.5),
        agreement("NORM-8", "gradients of 1 + weight", NAME, cases(focus=("gradients",))),
    ]


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    given = {"x": array(2, 6), "weight": array(6)}
    yield array.refusal("NORM-8", "plus_one that is no truth value", TypeError, NAME, given, eps=1e-5, plus_one=1)


OPERATION = JudgedOperation(NAME, probes, refusals, norm_histories)
