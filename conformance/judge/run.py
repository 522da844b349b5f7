"""A run: probes, their cases, every subject, one tally. `pool.py` spreads one over several processes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import hypothesis
import hypothesis.errors
from hypothesis import Phase

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import AGREEMENT, CALLS_IN_ORDER, DESCRIPTION, REFUSAL, SHAPES
from conformance.checks.check import Check
from conformance.checks.comparison import Finding, breaks
from conformance.checks.probe import Probe
from conformance.checks.refusals import Refusal
from conformance.checks.results import Tally, Violation
from conformance.diagnosis.attribution import Failure, attributed
from conformance.operations.corpus import Entry
from conformance.operations.refusals import refusals_of
from conformance.runner.in_process import Examiner
from conformance.runner.shrinking import Material, cuttable, reduced
from conformance.sampling.draws import EACH, Rows, drawing, drawn, own_seed, strategy_of, with_lot
from conformance.subjects.subject import NumpySubject, Subject

Progress = Callable[[str, str], None]
"""Told the rule and the title after every case."""

SHRINKING = 20.0
"""Seconds spent at most on making one failing case smaller."""
WHOLE_PLAN = 10
NOTHING_KNOWN: Mapping[tuple[str, str], Violation] = MappingProxyType({})
STUCK = 3
"""A subject that exceeds its time limit so often is not asked any more."""


Settle = Callable[[Violation], Violation | None]
"""What becomes of a violation: itself, one of another rule, or None."""


def as_found(found: Violation) -> Violation:
    """Every violation stands."""
    return found


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
    known: Mapping[tuple[str, str], Violation] = NOTHING_KNOWN,
    tried: Tried | None = None,
    settle: Settle = as_found,
) -> Tally:
    """One probe's cases; a subject that breaks a rule has its smallest failing case looked for.

    known: what was found before; no smaller case is looked for of what does not stand before it. tried: what another
    process has found with the probe's cases. settle: comes before that.
    """
    tally, failing = tried or try_probe(probe, examiners, examples, seed, progress)
    of_probe, by_name = seed_of(probe, seed), {examiner.name: examiner for examiner in examiners}

    def first_found(found: Violation) -> Violation | None:
        return settle(found) if found.stands_before(known.get((found.rule, found.subject))) else found

    settled(tally, first_found)
    for key, number in failing.items():
        found, before, examiner = tally.violations.get(key), known.get(key), by_name[key[1]]
        if found is None or found.of_state:
            continue
        if shrinking and found.stands_before(before) and not examiner.overrun:
            smaller = smaller_case(probe, examiner, of_probe, number, shrinking, found)
            # What stood before the one that is known by being no number may have shrunk to a number.
            # What is right alone has shrunk to a case that is not to blame.
            better = smaller is not None and smaller.stands_before(before) and settle(smaller) is smaller
            tally.violations[key] = smaller if smaller is not None and better else found
    return tally


def settled(tally: Tally, settle: Settle) -> None:
    """Put in place of every violation what becomes of it."""
    found, tally.violations = tally.violations, {}
    for violation in found.values():
        new = settle(violation)
        if new is None or new.rule != violation.rule:
            tally.rules[violation.rule, violation.subject].keeps()
        if new is not None:
            tally.violate(replace(new, before=()))
            cell = tally.rules[new.rule, new.subject]
            cell.worst = max(cell.worst, new.ratio)


def cases_of(probe: Probe, examples: int) -> int:
    """How many cases a probe gets; of a plan each row gives one where a probe of weight 1 gets `WHOLE_PLAN`.

    Where it gets fewer, large cases are left out first: of the rows a share that is the square of the other one.
    """
    if isinstance(probe.material, Rows):
        share = examples / WHOLE_PLAN
        return max(1, round(len(probe.material.strategies) * (share if share >= 1 else share**2) * probe.weight))
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
    findings = examiner(REFUSAL, refusal, None)
    if breaks(findings):
        tally.violate(violation(refusal.rule, refusal.title, REFUSAL, examiner, refusal, findings))
    tally.add(refusal.rule, examiner.name, findings, refusal.case)


def seed_of(probe: Probe, seed: int) -> int:
    """A seed of its own for every probe, so that leaving one out changes no other's cases."""
    return seed ^ zlib.crc32(f"{probe.rule} {probe.title}".encode())


def run_corpus(
    frozen: Iterable[Entry], examiners: Sequence[Examiner], shrinking: float = 0, settle: Settle = as_found
) -> Tally:
    """Cases that are written out; see `conformance.operations.corpus`."""
    tally, by_name = Tally(), {examiner.name: examiner for examiner in examiners}
    for entry in frozen:
        examiners = [examiner for examiner in examiners if examiner.overrun < STUCK]
        shared = entry.check.prepare(entry.material)
        for examiner in examiners:
            findings, rule = examiner(entry.check, entry.material, shared), entry.rule
            if breaks(findings):
                before = before_last(examiner)
                failure = attributed(examiner, Failure(rule, entry.check, entry.material, findings))
                rule, findings = failure.rule, failure.findings
                tally.violate(violation_of(failure, f"frozen: {entry.shows}", examiner, before))
            tally.add(rule, examiner.name, findings, entry.case)
    settled(tally, settle)
    for key, found in tally.violations.items():
        if shrinking and found.check != CALLS_IN_ORDER and not by_name[found.subject].overrun:
            smaller = cut_down(found, by_name[found.subject], shrinking)
            tally.violations[key] = smaller if settle(smaller) is smaller else found
    return tally


class Tried(NamedTuple):
    """What a probe's cases gave. failing: by rule and subject, the number of the case whose violation is kept."""

    tally: Tally
    failing: dict[tuple[str, str], int]


def try_probe(probe: Probe, examiners: Sequence[Examiner], examples: int, seed: int, progress: Progress) -> Tried:
    """Run a probe's cases and tally what is found."""
    agreement = probe.check == AGREEMENT
    tally, failing = Tally(), dict[tuple[str, str], int]()
    for number, material in drawn(probe.material, cases_of(probe, examples), seed_of(probe, seed)):
        asked = [examiner for examiner in examiners if examiner.overrun < STUCK]
        if not asked:
            break
        case = probe.check.case_of(material)
        asked = [examiner for examiner in asked if not examiner.sizes.beyond(case)]
        if not asked:
            continue
        shared = probe.check.prepare(material)
        tally.generated[probe.rule] += 1
        for examiner in asked:
            findings, rule = examiner(probe.check, material, shared), probe.rule
            if breaks(findings):
                before = before_last(examiner)
                failure = attributed(examiner, Failure(rule, probe.check, material, findings))
                rule, findings = failure.rule, failure.findings
                examiner.violates(rule)
                found = violation_of(failure, probe.title, examiner, before)
                if not examiner.sizes.known(found.finding):
                    tally.violate(found)
                if tally.violations.get((rule, examiner.name)) is found:
                    failing[rule, examiner.name] = number
            tally.add(rule, examiner.name, findings, case, agreement)
        if agreement and case.operation == "attention":
            tally.substance.add(case, *shared)
        progress(probe.rule, probe.title)
    return Tried(tally, failing)


def violation(
    rule: str, title: str, check: Check[Any, Any], examiner: Examiner, material: Any, findings: list[Finding]
) -> Violation:
    worst = max(findings, key=lambda finding: finding.ratio)
    return Violation(rule, examiner.name, worst, title, check, material, before=before_last(examiner))


def before_last(examiner: Examiner) -> tuple[Any, ...]:
    """The checks before the latest, as far as they are remembered."""
    return tuple(examiner.log)[:-1]


def violation_of(failure: Failure, title: str, examiner: Examiner, before: tuple[Any, ...]) -> Violation:
    _, check, material, findings = failure
    return replace(violation(failure.rule, title, check, examiner, material, findings), before=before)


class Broken(Exception):
    """Raised for Hypothesis to shrink."""


class Enough(BaseException):
    """Raised to end shrinking at once; no `Exception`, which Hypothesis would take for a failure of the test."""


def smaller_case(
    probe: Probe, examiner: Examiner, of_probe: int, number: int, seconds: float, found: Violation
) -> Violation | None:
    """The violation on a smaller case; None if the subject now passes. number: of the case on which it was found."""
    if cuttable(found.material):
        return cut_down(found, examiner, seconds)
    return smallest(probe, examiner, of_probe, number, seconds, found)


def smallest(
    probe: Probe, examiner: Examiner, of_probe: int, number: int, seconds: float, first: Violation
) -> Violation | None:
    """The smallest failing case that Hypothesis finds from the seed of `first`; None if the subject now passes.

    It is for materials that cannot be cut. What failed altogether does not shrink to what loses digits.
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
        findings = examiner(probe.check, material, probe.check.prepare(material))
        if breaks(findings):
            new = violation(first.rule, probe.title, probe.check, examiner, material, findings)
            if not first.stands_before(new):
                found.append(new)
                raise Broken

    try:
        each()
    except (Broken, Enough, hypothesis.errors.Flaky):
        return found[-1]
    return None


def cut_down(least: Violation, examiner: Examiner, seconds: float) -> Violation:
    """The violation on an even smaller case, where the material is a case, or several that can be cut alike.

    What failed altogether does not shrink to what loses digits. `steady` is False if the smallest case then passed.
    """
    if not cuttable(least.material):
        return least
    wrong = asking(least, examiner)
    failures = {id(least.material): least}

    def fails(material: Material) -> bool:
        findings = wrong(material)
        if findings is None:
            return False
        new = violation(least.rule, least.title, least.check, examiner, material, findings)
        failures.setdefault(id(material), new)
        return not least.stands_before(new)

    masked = least.check in (DESCRIPTION, SHAPES) or least.rule == "MASK-7"
    found = reduced(
        least.material, examiner.declaration, fails, seconds, masked, least.rule in OF_DTYPES, least.loses_digits
    )
    return replace(failures[id(found.material)], uncut=least.material, steady=found.steady)


OF_DTYPES = ("ATT-9", "NORM-2")
"""Rules of dtypes: a violation of theirs is not shown in another one."""


def asking(found: Violation, examiner: Examiner) -> Callable[[Material], list[Finding] | None]:
    """What the subject gets wrong of materials like the violation's; None where it gets nothing wrong.

    What is made from a material may no longer be what its check takes for granted (rows that are constant, two
    cases with one answer). Then the definition fails too, and nothing is wrong.
    """
    definition = Examiner(NumpySubject())
    prepared: list[Any] = [None, None]

    def wrong(material: Material) -> list[Finding] | None:
        if prepared[0] is not material:
            prepared[:] = material, found.check.prepare(material)
        findings = examiner(found.check, material, prepared[1])
        if not breaks(findings):
            return None
        sure = found.check == AGREEMENT or not breaks(definition(found.check, material, prepared[1]))
        return findings if sure else None

    return wrong
