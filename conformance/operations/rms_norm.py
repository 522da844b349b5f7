"""RMS norm: layer norm without the mean."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from conformance.cases.declaration import Declaration
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import no_refusals
from conformance.operations import layer_norm
from conformance.operations.layer_norm import at_sizes, spoiled
from conformance.sampling import strategies as generation

NAME = "rms_norm"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.norm_cases, NAME, declaration=declaration)
    planned = partial(at_sizes, NAME, declaration=declaration)
    graded = ("gradients",)
    return [
        spoiled(NAME, declaration),
        agreement("NORM-7", NAME, NAME, cases(gradients=False), weight=2.0),
        agreement("NORM-6", f"gradients of {NAME}", NAME, cases(focus=graded), weight=2.0),
        agreement("NORM-7", f"{NAME}, sizes", NAME, planned(NAME, gradients=False)),
        agreement("NORM-6", f"gradients of {NAME}, sizes", NAME, planned(f"gradients of {NAME}", focus=graded)),
    ]


OPERATION = replace(
    layer_norm.OPERATION,
    name=NAME,
    rules={"": "NORM-7", "gradients": "NORM-6"},
    arguments=("x", "weight"),
    differentiated=("x", "weight"),
    cases=partial(generation.norm_cases, NAME),
    probes=probes,
    refusals=no_refusals,
)
