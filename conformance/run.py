"""A run: probes, their cases, every subject, one tally. `workers.py` spreads one over several processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import hypothesis
import hypothesis.errors
from hypothesis import HealthCheck, Phase

from conformance.probes import Probe, examine_agreement
from conformance.refusals import REFUSALS, Refusal, refused
from conformance.subjects import Subject
from conformance.tally import Tally, Violation
from conformance.verdict import Finding

Progress = Callable[[str, str], None]
"""Told the rule and the title after every case."""


def silent(rule: str, title: str) -> None:
    """No progress is shown."""


def run(
    probes: Sequence[Probe],
    subjects: Sequence[Subject],
    *,
    examples: int,
    seed: int,
    progress: Progress = silent,
    shrink: bool = True,
) -> Tally:
    """Draw `examples` cases for each probe (times its weight), the same for every subject, and tally what is found."""
    tally = run_refusals({probe.rule for probe in probes}, subjects)
    for probe in probes:
        tally.include(run_probe(probe, subjects, examples, seed, progress, shrink))
    return tally


def run_probe(
    probe: Probe, subjects: Sequence[Subject], examples: int, seed: int, progress: Progress, shrink: bool
) -> Tally:
    """One probe's cases; a subject that breaks its rule has its smallest failing case looked for."""
    tally, count, own_seed = Tally(), cases_of(probe, examples), seed_of(probe, seed)
    try_probe(probe, subjects, count, own_seed, tally, progress)
    for subject in subjects:
        first = tally.violations.get((probe.rule, subject.name))
        if shrink and first is not None:
            tally.violations[probe.rule, subject.name] = smallest(probe, subject, count, own_seed) or first
    return tally


def cases_of(probe: Probe, examples: int) -> int:
    return max(1, round(examples * probe.weight))


def run_refusals(rules: Collection[str], subjects: Sequence[Subject]) -> Tally:
    """Every call that the rules refuse."""
    tally = Tally()
    for refusal in REFUSALS:
        if refusal.rule in rules:
            try_refusal(refusal, subjects, tally)
    return tally


def try_refusal(refusal: Refusal, subjects: Sequence[Subject], tally: Tally) -> None:
    for subject in subjects:
        message = refused(subject, refusal)
        finding = Finding(refusal.title, float("inf") if message else 0.0, message=message)
        tally.add(refusal.rule, subject.name, [finding], refusal.case)


def seed_of(probe: Probe, seed: int) -> int:
    """A seed of its own for every probe, so that leaving one out changes no other's cases."""
    return seed ^ zlib.crc32(f"{probe.rule} {probe.title}".encode())


def drawing(examples: int, *phases: Phase) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )


def try_probe(
    probe: Probe, subjects: Sequence[Subject], examples: int, seed: int, tally: Tally, progress: Progress
) -> None:
    @hypothesis.seed(seed)
    @drawing(examples, Phase.generate)
    @hypothesis.given(probe.material)
    def each(material: Any) -> None:
        shared = probe.prepare(material)
        case, agreement = probe.case_of(material), probe.examine is examine_agreement
        tally.generated[probe.rule] += 1
        for subject in subjects:
            tally.add(probe.rule, subject.name, examine(probe, subject, material, shared), case, agreement)
        if agreement and case.operation == "attention":
            tally.substance.add(case, shared[1])
        progress(probe.rule, probe.title)

    each()


def examine(probe: Probe, subject: Subject, material: Any, shared: Any) -> list[Finding]:
    """The probe's findings; an exception that the subject raises is a finding like any other."""
    try:
        return probe.examine(subject, material, shared)
    except Exception as error:
        return [Finding("call", float("inf"), message=f"raised {type(error).__name__}: {error}")]


class Broken(Exception):
    """Raised for Hypothesis to shrink."""


def smallest(probe: Probe, subject: Subject, examples: int, seed: int) -> Violation | None:
    """The smallest failing case that Hypothesis finds from the same seed; None if the subject now passes."""
    found: list[Violation] = []

    @hypothesis.seed(seed)
    @drawing(examples, Phase.generate, Phase.shrink)
    @hypothesis.given(probe.material)
    def each(material: Any) -> None:
        findings = examine(probe, subject, material, probe.prepare(material))
        worst = max(findings, key=lambda finding: finding.ratio, default=None)
        if worst is not None and worst.ratio > 1:
            found.append(Violation(probe.rule, subject.name, worst.ratio, str(worst), probe.case_of(material)))
            raise Broken

    try:
        each()
    except (Broken, hypothesis.errors.Flaky):
        return found[-1]
    return None
