"""Asking a subject the failing case once more, to compare its answers with what known mistakes would give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases import Case
from conformance.diagnosis import attention, layers
from conformance.diagnosis.matching import Bounds, Mistake, largest, matching, multiples
from conformance.diagnosis.precision import excused, scale_off, variance_off
from conformance.expectations import Planted
from conformance.features import NORMS
from conformance.oracle import oracle
from conformance.spreading import gradient_name
from conformance.subjects import Subject
from conformance.verdict import Finding, judge


def mistakes_of(operation: str) -> list[Mistake]:
    if operation.startswith("attention"):
        return attention.MISTAKES
    return layers.NORM_MISTAKES if operation in NORMS else layers.LAYER_MISTAKES.get(operation, [])


def examine_diagnosis(subject: Subject, material: tuple[str, Any, Finding], shared: None) -> list[Finding]:
    """One finding for each mistake that matches; material: the violation's examination, material and finding.

    None where the answers are now right: asked in this way, or this time, the subject makes no mistake.
    """
    examined_by, failing, finding = material
    if isinstance(failing, Planted):
        if names := of_planted(failing, finding):
            return [named(name) for name in names]
        failing = failing.clean  # a number came where another was due: perhaps without what was planted, too
    parts = failing if isinstance(failing, tuple) else (failing,)
    asked, judged = parts[0], parts[1] if examined_by in ("twin", "towering") else parts[0]
    if not isinstance(asked, Case) or asked.special or finding.name not in ("output", *gradients(asked)):
        return []
    got, truth, bounds = subject(asked), oracle(judged), bound(judged)
    if all(one.ratio <= 1 for one in judge(judged, got, truth, bounds)):
        return []
    mistakes = mistakes_of(judged.operation)
    names = [*matching(judged, got, truth, finding, mistakes), *multiples(judged, got, truth, finding)]
    if asked is not judged:  # a mistake need not be the same for both: a score of 0 stands apart only from far ones
        plain = [m if m.of_any_size else m._replace(answers=at_most(bounds, m.answers)) for m in mistakes]
        own = [*matching(asked, got, truth, finding, plain)]
        names = own + [name for name in names if name not in own]
    if not names:
        names = [*scale_off(judged, got), *variance_off(judged, got), *excused(judged, got, truth)][:1]
    return [named(name) for name in names]


def at_most(most: Bounds, answers: Callable[[Case], Any]) -> Callable[[Case], Any]:
    """The same answers, with bounds of at most the largest of these: scores of 1e30 leave none that tells anything."""

    def narrower(case: Case) -> Any:
        given = answers(case)
        if given is None:
            return None
        exact, bounds = given
        return exact, {name: np.minimum(b, largest(most.get(name, b))) for name, b in bounds.items()}

    return narrower


def gradients(case: Case) -> list[str]:
    return [gradient_name(name) for name in case.inputs] if case.cotangents else []


def named(name: str) -> Finding:
    return Finding("diagnosis", 0.0, message=name)


def of_planted(planted: Planted, finding: Finding) -> list[str]:
    """What NaN and infinity show by themselves; nothing where numbers are compared."""
    if np.isfinite(finding.expected) and not np.isfinite(finding.got):
        return ["what stands behind a mask is multiplied by a weight of 0, and 0 * NaN and 0 * inf are NaN"]
    return ["NaN is swallowed"] if np.isnan(finding.expected) else []
