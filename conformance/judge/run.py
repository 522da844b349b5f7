"""A run: probes, their cases, every subject, one set of results. `pool.py` spreads one over several processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import AGREEMENT, DESCRIPTION, REFUSAL, SHAPES
from conformance.checks.check import Check
from conformance.checks.comparison import breaks, worst
from conformance.checks.findings import Finding
from conformance.checks.kept_cases import KeptCase, KeptCases
from conformance.checks.levels import CORE, least_level
from conformance.checks.probe import Probe, probe_id
from conformance.checks.refusals import Refusal
from conformance.checks.results import WIDE, Results, Violation
from conformance.judge.attribution import Failure, attribute, is_in_empty_row
from conformance.operations.corpus import Entry
from conformance.operations.refusals import refusals_of
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import Example, cuttable, shrink_example
from conformance.sampling.draws import Rows, draw_cases
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


def keep_as_found(found: Violation) -> Violation:
    """Every violation stands."""
    return found


def silent(rule: str, title: str) -> None:
    """No progress is shown."""


def run(
    probes: Sequence[Probe], subjects: Sequence[Subject], *, examples: int, seed: int, progress: Progress = silent
) -> Results:
    """Draw `examples` cases for each probe (times its weight), the same for every subject, and return the results."""
    runners = [Runner(subject) for subject in subjects]
    results = run_refusals({probe.rule for probe in probes}, runners)
    for probe in probes:
        results.include(run_probe(probe, runners, examples, seed, progress))
    return results


def run_probe(
    probe: Probe,
    runners: Sequence[Runner],
    examples: int,
    seed: int,
    progress: Progress,
    known: Mapping[tuple[str, str], Violation] = NOTHING_KNOWN,
    tried: Results | None = None,
    settle: Settle = keep_as_found,
) -> Results:
    """Run one probe's cases, and settle what they show.

    known: what was found before; what does not stand before it is not settled. tried: what another process has found
    with the probe's cases.
    """
    results = tried or try_probe(probe, runners, examples, seed, progress)

    def settle_new(found: Violation) -> Violation | None:
        return settle(found) if found.stands_before(known.get((found.rule, found.subject))) else found

    settle_all(results, settle_new)
    return results


def settle_all(results: Results, settle: Settle) -> None:
    """Put in place of every violation what becomes of it."""
    found, results.violations = results.violations, {}
    for violation in found.values():
        new = settle(violation)
        if new is None or new.rule != violation.rule:
            results.rules[violation.rule, violation.subject].keeps()
            results.worst.pop((violation.rule, violation.subject), None)
        if new is not None:
            results.violate(replace(new, before=()))
            results.rules[new.rule, new.subject].reaches(new.ratio, "" if new.case is None else new.case.dtype)


def cases_of(probe: Probe, examples: int) -> int:
    """How many cases a probe gets; of a plan each row gives one where a probe of weight 1 gets `WHOLE_PLAN`.

    Where it gets fewer, large cases are left out first: of the rows a share that is the square of the other one.
    """
    if isinstance(probe.cases, Rows):
        share = examples / WHOLE_PLAN
        return max(1, round(len(probe.cases.strategies) * (share if share >= 1 else share**2) * probe.weight))
    return max(1, round(examples * probe.weight))


def run_refusals(
    rules: Collection[str] | None,
    runners: Sequence[Runner],
    operation: str | None = None,
    declaration: Declaration | None = None,
) -> Results:
    """Every call that the rules refuse; of one operation, or of all. declaration: if what a subject takes is less."""
    results = Results()
    for runner in runners:
        for refusal in refusals_of(operation, declaration or runner.declaration):
            claimed = "refusals" in runner.declaration and (rules is None or refusal.rule in rules)
            if claimed and runner.overrun < STUCK:
                run_refusal(refusal, runner, results)
    return results


def run_refusal(refusal: Refusal, runner: Runner, results: Results) -> None:
    findings = runner(REFUSAL, refusal, None)
    if breaks(findings):
        results.violate(violation(refusal.rule, refusal.title, REFUSAL, runner, refusal, findings))
    results.add(refusal.rule, runner.name, findings, refusal.case)


def seed_of(probe: Probe, seed: int) -> int:
    """A seed of its own for every probe, so that leaving one out changes no other's cases."""
    return seed ^ zlib.crc32(probe.id.encode())


def run_corpus(frozen: Iterable[Entry], runners: Sequence[Runner], settle: Settle = keep_as_found) -> Results:
    """Cases that are written out; see `conformance.operations.corpus`."""
    results = Results()
    for entry in frozen:
        asked = [runner for runner in runners if runner.overrun < STUCK]
        if entry.case.memory:
            asked = [runner for runner in asked if runner.declaration.strides]
        shared = entry.check.prepare(entry.example)
        for runner in asked:
            findings, rule = runner(entry.check, entry.example, shared), entry.rule
            keep_case(results.kept[runner.name], entry, entry.shows, entry.check, entry.example, findings)
            if breaks(findings):
                before = earlier_checks(runner)
                failure = attribute(runner, Failure(rule, entry.check, entry.example, findings), shared)
                rule, findings = failure.rule, failure.findings
                results.violate(frozen_violation(failure, entry, runner, before))
            results.add(rule, runner.name, findings, entry.case)
    settle_all(results, settle)
    return results


def try_probe(probe: Probe, runners: Sequence[Runner], examples: int, seed: int, progress: Progress) -> Results:
    """Run a probe's cases and return the results."""
    agreement, results = probe.check == AGREEMENT, Results()
    runners = [runner for runner in runners if runner.declaration.strides or not probe.of_memory]
    for _, example in draw_cases(probe.cases, cases_of(probe, examples), seed_of(probe, seed)):
        asked = [runner for runner in runners if runner.overrun < STUCK]
        if not asked:
            break
        case = probe.check.case_of(example)
        asked = [runner for runner in asked if not runner.sizes.is_too_large(case)]
        if not asked:
            continue
        shared = probe.check.prepare(example)
        results.generated[probe.rule] += 1
        for runner in asked:
            findings, rule = runner(probe.check, example, shared), probe.rule
            keep_case(results.kept[runner.name], probe, probe.title, probe.check, example, findings)
            if breaks(findings):
                before = earlier_checks(runner)
                failure = attribute(runner, Failure(rule, probe.check, example, findings), shared)
                rule, findings = failure.rule, failure.findings
                runner.violates(rule)
                found = violation_of(failure, probe, runner, before)
                if not runner.sizes.is_reported(found.finding):
                    results.violate(found)
            results.add(rule, runner.name, findings, narrowest(example, case), agreement)
        if agreement and case.operation == "attention":
            results.substance.add(case, *shared)
        progress(probe.rule, probe.title)
    return results


def keep_case(
    kept: KeptCases, probe: Probe | Entry, title: str, check: Check[Any, Any], example: Any, findings: list[Finding]
) -> None:
    """Keep a case for the diagnosis, which asks it again; not one without an answer, such as that of a time-out."""
    failed = breaks(findings)
    if not failed or worst(findings).is_of_values:
        least = least_level(probe.rule, probe.level)
        kept.add(KeptCase(probe.rule, probe.id, title, check, example, failed, least))


def narrowest(example: Any, case: Case) -> Case:
    """Of several calls one of 16 bits, because the error may be any one's; else its case."""
    several = example if isinstance(example, tuple) else ()
    return next((one for one in several if isinstance(one, Case) and one.dtype not in WIDE), case)


def violation(
    rule: str, title: str, check: Check[Any, Any], runner: Runner, example: Any, findings: list[Finding]
) -> Violation:
    """The violation that the findings show, of what no probe has asked. title: of what has."""
    found, least, asked = worst(findings), least_level(rule), probe_id(rule, title)
    return Violation(
        rule, runner.name, found, title, check, example, before=earlier_checks(runner), least=least, probe=asked
    )


def earlier_checks(runner: Runner) -> tuple[Any, ...]:
    """The checks before the latest, as far as they are remembered."""
    return tuple(runner.log)[:-1]


def attach_probe(found: Violation, probe: Probe | Entry) -> Violation:
    """The violation with the identity of the probe that drew its case, and its level where the rule is the same."""
    of_probe = probe.level if found.rule == probe.rule else CORE
    return replace(found, probe=probe.id, least=least_level(found.rule, of_probe))


def violation_of(failure: Failure, probe: Probe, runner: Runner, before: tuple[Any, ...]) -> Violation:
    rule, check, example, findings = failure
    found = violation(rule, probe.title, check, runner, example, findings)
    return attach_probe(replace(found, before=before), probe)


def frozen_violation(failure: Failure, entry: Entry, runner: Runner, before: tuple[Any, ...]) -> Violation:
    """A violation that a frozen case shows, with the level of the probe that drew it."""
    rule, check, example, findings = failure
    title = f'a frozen case; its own name, and no diagnosis: "{entry.shows}"'
    found = violation(rule, title, check, runner, example, findings)
    return attach_probe(replace(found, before=before), entry)


def shrink_violations(results: Results, runners: Iterable[Runner], seconds: float) -> None:
    """Make the case of every violation smaller, where nobody looks for its cause."""
    by_name = {runner.name: runner for runner in runners}
    for key, found in results.violations.items():
        if not by_name[found.subject].overrun and not found.depends_on_state:
            results.violations[key] = cut_down(found, by_name[found.subject], seconds)


Accepts = Callable[[Violation, Example], bool]
"""Whether a smaller example still shows what the first one does."""


def cut_down(least: Violation, runner: Runner, seconds: float, accepts: Accepts | None = None) -> Violation:
    """The violation on a smaller case, where the example is a case, or several that can be cut alike.

    A wrong result does not shrink to another kind of finding, to lost digits, to what fewer profiles ask for, or to a
    row that allows nothing, which is of another rule; nor NaN or infinity to a number. `steady` is False if the
    smallest case then passed. The case of a rule of dtypes stays in its dtype, and so does one that loses digits in 16
    bits.
    """
    if not cuttable(least.example):
        return least
    wrong = asking(least, runner)
    failures = {id(least.example): least}
    empty = least.case is not None and is_in_empty_row(least.case, least.finding)

    def fails(example: Example) -> bool:
        findings = wrong(example)
        if findings is None:
            return False
        new = violation(least.rule, least.title, least.check, runner, example, findings)
        new = replace(new, least=least.least, probe=least.probe)
        if new.finding.kind != least.finding.kind or least.stands_before(new):
            return False
        if new.is_numeric and not least.is_numeric:
            return False
        if new.case is not None and is_in_empty_row(new.case, new.finding) and not empty:
            return False
        if accepts is not None and not accepts(new, example):
            return False
        failures.setdefault(id(example), new)
        return True

    masked = least.check in (DESCRIPTION, SHAPES) or least.rule == "MASK-7"
    keeps_dtype = least.rule in OF_DTYPES or least.rounds_16_bits
    found = shrink_example(least.example, runner.declaration, fails, seconds, masked, keeps_dtype, least.loses_digits)
    return replace(failures[id(found.example)], uncut=least.example, steady=found.steady)


OF_DTYPES = ("ATT-9", "NORM-2")
"""Rules of dtypes: a violation of theirs is not shown in another one."""


def asking(found: Violation, runner: Runner) -> Callable[[Example], list[Finding] | None]:
    """What the subject gets wrong of examples like the violation's; None where it gets nothing wrong.

    What is made from an example may no longer be what its check takes for granted (rows that are constant, two
    cases with one answer). Then the definition fails too, and nothing is wrong.
    """
    definition = Runner(NumpySubject())
    prepared: list[Any] = [None, None]

    def wrong(example: Example) -> list[Finding] | None:
        if prepared[0] is not example:
            try:
                prepared[:] = example, found.check.prepare(example)
            except (TypeError, ValueError):  # the definition refuses it
                return None
        findings = runner(found.check, example, prepared[1])
        if not breaks(findings, found.finding.level):
            return None
        sure = found.check == AGREEMENT or not breaks(definition(found.check, example, prepared[1]))
        return findings if sure else None

    return wrong
