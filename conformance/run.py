"""The run: every probe, its cases, every subject, one tally."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from conformance.probes import Probe, examine_agreement
from conformance.refusals import REFUSALS, Refusal, refused
from conformance.subjects import Subject
from conformance.tally import Tally, Violation
from conformance.verdict import Finding

Progress = Callable[[str, str], None]
"""Told the rule and the title after every case."""


def run(
    probes: Sequence[Probe],
    subjects: Sequence[Subject],
    *,
    examples: int,
    seed: int,
    progress: Progress = lambda rule, title: None,
    shrink: bool = True,
) -> Tally:
    """Draw `examples` cases for each probe (times its weight), the same for every subject, and tally what is found."""
    tally = Tally()
    rules = {probe.rule for probe in probes}
    for refusal in REFUSALS:
        if refusal.rule in rules:
            try_refusal(refusal, subjects, tally)
            progress(refusal.rule, "refusals")
    for probe in probes:
        count = cases_of(probe, examples)
        try_probe(probe, subjects, count, seed_of(probe, seed), tally, progress)
        for subject in subjects:
            broken = tally.rules[probe.rule, subject.name].worst > 1
            if broken and (probe.rule, subject.name) not in tally.violations:
                violation = smallest(probe, subject, count, seed_of(probe, seed), shrink)
                if violation is not None:
                    tally.violations[probe.rule, subject.name] = violation
    return tally


def cases_of(probe: Probe, examples: int) -> int:
    return max(1, round(examples * probe.weight))


def try_refusal(refusal: Refusal, subjects: Sequence[Subject], tally: Tally) -> None:
    for subject in subjects:
        message = refused(subject, refusal)
        finding = Finding(refusal.title, float("inf") if message else 0.0, message=message)
        tally.add(refusal.rule, subject.name, [finding])
        if message:
            violation = Violation(refusal.rule, subject.name, finding.ratio, str(finding), refusal.case)
            tally.violations.setdefault((refusal.rule, subject.name), violation)


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
        compared = material if probe.examine is examine_agreement else None
        tally.generated[probe.rule] += 1
        for subject in subjects:
            tally.add(probe.rule, subject.name, examine(probe, subject, material, shared), compared)
        if compared is not None and compared.operation == "attention":
            tally.substance.add(compared, shared[1])
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


def smallest(probe: Probe, subject: Subject, examples: int, seed: int, shrink: bool) -> Violation | None:
    """The smallest failing case that Hypothesis finds from the same seed."""
    found: list[Violation] = []

    @hypothesis.seed(seed)
    @drawing(examples, Phase.generate, *([Phase.shrink] if shrink else []))
    @hypothesis.given(probe.material)
    def each(material: Any) -> None:
        findings = examine(probe, subject, material, probe.prepare(material))
        worst = max(findings, key=lambda finding: finding.ratio, default=None)
        if worst is not None and worst.ratio > 1:
            found.append(
                Violation(probe.rule, subject.name, worst.ratio, str(worst), probe.case_of(material) or material)
            )
            raise Broken

    try:
        each()
    except Broken:
        return found[-1]
    return None
