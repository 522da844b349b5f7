"""Asking a subject the failing case once more, to compare its answers with what known mistakes would give."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases import Case
from conformance.diagnosis import attention, layers
from conformance.diagnosis.matching import Mistake, matching
from conformance.diagnosis.precision import excused, scale_off
from conformance.expectations import Planted
from conformance.oracle import oracle
from conformance.spreading import gradient_name
from conformance.subjects import Subject
from conformance.verdict import Finding, judge

STRIDES = {
    "views": "strides are ignored: in contiguous arrays the same numbers are answered rightly",
    "broadcast cotangents": "the cotangent's strides are ignored: in contiguous arrays the same numbers give no error",
}
"""What it says that a case fails by such an examination, and not when it is asked plainly."""


def mistakes_of(operation: str) -> list[Mistake]:
    if operation.startswith("attention"):
        return attention.MISTAKES
    return layers.NORM_MISTAKES if operation.endswith("_norm") else layers.LAYER_MISTAKES.get(operation, [])


def examine_diagnosis(subject: Subject, material: tuple[str, Any, Finding], shared: None) -> list[Finding]:
    """One finding for each mistake that matches; material: the violation's examination, material and finding.

    None where the answers are now right: asked in this way, or this time, the subject makes no mistake.
    """
    examined_by, failing, finding = material
    if isinstance(failing, Planted):
        return [named(name) for name in of_planted(failing, finding)]
    parts = failing if isinstance(failing, tuple) else (failing,)
    asked, judged = parts[0], parts[1] if examined_by in ("twin", "towering") else parts[0]
    if not isinstance(asked, Case) or asked.special or finding.name not in ("output", *gradients(asked)):
        return []
    got, truth = subject(asked), oracle(judged)
    if all(one.ratio <= 1 for one in judge(judged, got, truth, bound(judged))):
        return [named(STRIDES[examined_by])] if examined_by in STRIDES else []
    names = list(matching(judged, got, truth, finding, mistakes_of(judged.operation)))
    return [named(name) for name in names or [*scale_off(judged, got), *excused(judged, got, truth)][:1]]


def gradients(case: Case) -> list[str]:
    return [gradient_name(name) for name in case.inputs] if case.cotangents else []


def named(name: str) -> Finding:
    return Finding("diagnosis", 0.0, message=name)


def of_planted(planted: Planted, finding: Finding) -> list[str]:
    """What NaN and infinity show by themselves."""
    if np.isfinite(finding.expected) and not np.isfinite(finding.got):
        return ["what stands behind a mask is multiplied by a weight of 0, and 0 * NaN and 0 * inf are NaN"]
    return ["NaN is swallowed"] if np.isnan(finding.expected) else []
