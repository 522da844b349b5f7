"""A run: probes, their cases, every subject, one tally. `workers.py` spreads one over several processes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.errors
from hypothesis import Phase

from conformance.corpus import Entry
from conformance.declaration import Declaration
from conformance.drawing import EACH, Rows, drawing, drawn, own_seed, strategy_of, with_lot
from conformance.examinations import EXAMINATIONS
from conformance.guard import Examiner
from conformance.probes import Probe
from conformance.reducing import Material, reduced
from conformance.refusals import Refusal, refusals_of
from conformance.subjects import Subject
from conformance.tally import Tally, Violation
from conformance.verdict import Finding

Progress = Callable[[str, str], None]
"""Told the rule and the title after every case."""

SHRINKING = 20.0
"""Seconds spent at most on making one failing case smaller."""
WHOLE_PLAN = 10
STUCK = 3
"""A subject that exceeds its time limit so often is not asked any more."""


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
    examiners = [Examiner(subject) for subject in subjects]
    tally = run_refusals({probe.rule for probe in probes}, examiners)
    for probe in probes:
        tally.include(run_probe(probe, examiners, examples, seed, progress, SHRINKING if shrink else 0))
    return tally


def run_probe(
    probe: Probe,
    examiners: Sequence[Examiner],
    examples: int,
    seed: int,
    progress: Progress,
    shrinking: float,
    known: Violation | None = None,
) -> Tally:
    """One probe's cases; a subject that breaks its rule has its smallest failing case looked for.

    known: of this rule; no smaller case is looked for of what does not stand before it.
    """
    tally, of_probe = Tally(), seed_of(probe, seed)
    failing = try_probe(probe, examiners, cases_of(probe, examples), of_probe, tally, progress)
    for examiner in examiners:
        found = tally.violations.get((probe.rule, examiner.name))
        if shrinking and found is not None and found.stands_before(known) and not examiner.overrun:
            smaller = smallest(probe, examiner, of_probe, failing[examiner.name], shrinking, found)
            # What stood before the one that is known by being no number may have shrunk to a number.
            kept = smaller if smaller is not None and smaller.stands_before(known) else found
            tally.violations[probe.rule, examiner.name] = kept
    return tally


def cases_of(probe: Probe, examples: int) -> int:
    """How many cases a probe gets; of a plan each row gives one where a probe of weight 1 gets `WHOLE_PLAN`."""
    if isinstance(probe.material, Rows):
        return max(1, round(len(probe.material.strategies) * examples / WHOLE_PLAN * probe.weight))
    return max(1, round(examples * probe.weight))


def run_refusals(
    rules: Collection[str] | None,
    examiners: Sequence[Examiner],
    operation: str | None = None,
    declaration: Declaration | None = None,
) -> Tally:
    """Every call that the rules refuse; of one operation, or of all. declaration: if what a subject takes is less."""
    tally = Tally()
    for examiner in examiners:
        for refusal in refusals_of(operation, declaration or examiner.declaration):
            claimed = "refusals" in examiner.declaration and (rules is None or refusal.rule in rules)
            if claimed and examiner.overrun < STUCK:
                run_refusal(refusal, examiner, tally)
    return tally


def run_refusal(refusal: Refusal, examiner: Examiner, tally: Tally) -> None:
    findings = examiner("refusal", refusal, None)
    if breaks(findings):
        tally.violate(violation(refusal.rule, refusal.title, "refusal", examiner, refusal, findings))
    tally.add(refusal.rule, examiner.name, findings, refusal.case)


def seed_of(probe: Probe, seed: int) -> int:
    """A seed of its own for every probe, so that leaving one out changes no other's cases."""
    return seed ^ zlib.crc32(f"{probe.rule} {probe.title}".encode())


def run_corpus(frozen: Iterable[Entry], examiners: Sequence[Examiner], shrinking: float = 0) -> Tally:
    """Cases that are written out; see `conformance.corpus`."""
    tally, by_name = Tally(), {examiner.name: examiner for examiner in examiners}
    for entry in frozen:
        examiners = [examiner for examiner in examiners if examiner.overrun < STUCK]
        shared = EXAMINATIONS[entry.examined_by].prepare(entry.material)
        for examiner in examiners:
            findings = examiner(entry.examined_by, entry.material, shared)
            if breaks(findings):
                title = f"frozen: {entry.shows}"
                tally.violate(violation(entry.rule, title, entry.examined_by, examiner, entry.material, findings))
            tally.add(entry.rule, examiner.name, findings, entry.case)
    for key, found in tally.violations.items():
        if shrinking and not by_name[found.subject].overrun:
            tally.violations[key] = cut_down(found, by_name[found.subject], shrinking)
    return tally


def try_probe(
    probe: Probe, examiners: Sequence[Examiner], examples: int, seed: int, tally: Tally, progress: Progress
) -> dict[str, int]:
    """Tally what is found; the number of the case of the violation that is kept, by the subject's name."""
    examination, agreement = probe.examination, probe.examined_by == "agreement"
    failing: dict[str, int] = {}
    for number, material in drawn(probe.material, examples, seed):
        asked = [examiner for examiner in examiners if examiner.overrun < STUCK]
        if not asked:
            break
        shared, case = examination.prepare(material), examination.case_of(material)
        tally.generated[probe.rule] += 1
        for examiner in asked:
            findings = examiner(probe.examined_by, material, shared)
            if breaks(findings):
                found = violation(probe.rule, probe.title, probe.examined_by, examiner, material, findings)
                tally.violate(found)
                if tally.violations[probe.rule, examiner.name] is found:
                    failing[examiner.name] = number
            tally.add(probe.rule, examiner.name, findings, case, agreement)
        if agreement and case.operation == "attention":
            tally.substance.add(case, *shared)
        progress(probe.rule, probe.title)
    return failing


def breaks(findings: list[Finding]) -> bool:
    return any(finding.ratio > 1 for finding in findings)


def violation(
    rule: str, title: str, examined_by: str, examiner: Examiner, material: Any, findings: list[Finding]
) -> Violation:
    worst = max(findings, key=lambda finding: finding.ratio)
    return Violation(rule, examiner.name, worst, title, examined_by, material)


class Broken(Exception):
    """Raised for Hypothesis to shrink."""


class Enough(BaseException):
    """Raised to end shrinking at once; no `Exception`, which Hypothesis would take for a failure of the test."""


def smallest(
    probe: Probe, examiner: Examiner, of_probe: int, number: int, seconds: float, first: Violation
) -> Violation | None:
    """The smallest failing case that Hypothesis finds from the seed of `first`; None if the subject now passes.

    What failed altogether does not shrink to what loses digits; nor in `cut_down`.
    """
    found: list[Violation] = []
    end = time.monotonic() + seconds

    @hypothesis.seed(own_seed(of_probe, number))
    @drawing(EACH, Phase.generate, Phase.shrink)
    @hypothesis.given(with_lot(strategy_of(probe.material, number, of_probe)))
    def each(drawn: tuple[int, Any]) -> None:
        material = drawn[1]
        if found and time.monotonic() > end:
            raise Enough
        findings = examiner(probe.examined_by, material, probe.examination.prepare(material))
        if breaks(findings):
            new = violation(probe.rule, probe.title, probe.examined_by, examiner, material, findings)
            if not first.stands_before(new):
                found.append(new)
                raise Broken

    try:
        each()
    except (Broken, Enough, hypothesis.errors.Flaky):
        return cut_down(found[-1], examiner, seconds / 2)
    return None


def cut_down(least: Violation, examiner: Examiner, seconds: float) -> Violation:
    """The violation on an even smaller case, where the material is a case, or one with its clean twin."""
    failures, examination = {id(least.material): least}, EXAMINATIONS[least.examined_by]

    def fails(material: Material) -> bool:
        findings = examiner(least.examined_by, material, examination.prepare(material))
        if not breaks(findings):
            return False
        new = violation(least.rule, least.title, least.examined_by, examiner, material, findings)
        failures[id(material)] = new
        return not least.stands_before(new)

    if not isinstance(least.material, Material):
        return least
    masked = least.examined_by in ("description", "shapes") or least.rule == "MASK-7"
    found = failures[id(reduced(least.material, examiner.declaration, fails, seconds, masked))]
    return replace(found, uncut=least.material)
