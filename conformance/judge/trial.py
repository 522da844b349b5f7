"""One question to several subjects: its cases, what each answers, and the violations that these show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.checks.catalogue import AGREEMENT, REFUSAL, Check, Example, Probe, probe_id
from conformance.checks.comparison import breaks, worst
from conformance.checks.findings import Finding
from conformance.checks.levels import CORE, least_level
from conformance.checks.refusals import Refusal
from conformance.checks.results import WIDE, KeptCase, Results, Violation
from conformance.judge.plan import Question, count_cases, seed_of
from conformance.operations.corpus import Entry
from conformance.runner.in_process import Runner
from conformance.sampling.draws import draw_cases

Progress = Callable[[str, str], None]
"""Called with the rule and the title after every case."""
Settle = Callable[[Violation], Violation | None]
"""What becomes of a violation: itself, one of another rule, or None."""

STUCK = 3
"""A subject that exceeds its time limit so often is not asked any more."""


def accept_violation(violation: Violation) -> Violation:
    """Every violation stands."""
    return violation


def ignore_progress(rule: str, title: str) -> None:
    """No progress is shown."""


def ask_questions(
    questions: Iterable[Question],
    runners: Sequence[Runner],
    examples: int,
    seed: int,
    progress: Progress = ignore_progress,
) -> Results:
    """Ask several subjects the same questions.

    Args:
        questions: those of a plan.
        runners: of the subjects, with one declaration.
        examples: cases for a probe of weight 1.
        seed: of the run; every probe has its own by it.
        progress: is called after every case of a probe.
    """
    results = Results()
    for question in questions:
        answers = ask_question(question, runners, examples, seed, progress)
        settle_violations(answers, accept_violation)
        results.include(answers)
    return results


def ask_question(
    question: Question, runners: Sequence[Runner], examples: int, seed: int, progress: Progress = ignore_progress
) -> Results:
    """Ask one question, and return the results as they are found."""
    if question.kind == "frozen":
        return ask_frozen(question.about, runners)
    if question.kind == "refusal":
        return ask_refusal(question.about, runners)
    return ask_probe(question.about, runners, examples, seed, progress)


def ask_probe(
    probe: Probe, runners: Sequence[Runner], examples: int, seed: int, progress: Progress = ignore_progress
) -> Results:
    """Draw a probe's cases, the same for every subject, and ask them."""
    results = Results()
    runners = [runner for runner in runners if runner.declaration.strides or not probe.of_memory]
    for _, example in draw_cases(probe.cases, count_cases(probe, examples), seed_of(probe, seed)):
        able = [*runners_able(runners)]
        if not able:
            break
        case = probe.check.case_of(example)
        able = [runner for runner in able if not runner.sizes.is_too_large(case)]
        if able:
            results.generated[probe.rule] += 1
            shared = ask_runners(probe, probe.title, example, able, results)
            if probe.check == AGREEMENT and case.operation == "attention":
                results.substance.add(case, *shared)
            progress(probe.rule, probe.title)
    return results


def ask_frozen(entries: Iterable[Entry], runners: Sequence[Runner]) -> Results:
    """Ask cases that are written out; see `conformance.operations.corpus`."""
    results = Results()
    for entry in entries:
        lays = [runner for runner in runners_able(runners) if runner.declaration.strides or not entry.case.memory]
        title = f'a frozen case; its own name, and no diagnosis: "{entry.shows}"'
        ask_runners(entry, title, entry.example, lays, results)
    return results


def ask_refusal(refusal: Refusal, runners: Sequence[Runner]) -> Results:
    """Ask a call that must raise an error, of those that say that they refuse bad input."""
    results = Results()
    for runner in runners_able(runners):
        if "refusals" in runner.declaration:
            findings = runner(REFUSAL, refusal, None)
            if breaks(findings):
                results.add_violation(make_violation(refusal.rule, refusal.title, REFUSAL, runner, refusal, findings))
            results.add(refusal.rule, runner.name, findings, refusal.case)
    return results


def runners_able(runners: Iterable[Runner]) -> Iterator[Runner]:
    """Yield those that have not run out of time."""
    return (runner for runner in runners if runner.overrun < STUCK)


def ask_runners(source: Probe | Entry, title: str, example: Any, runners: Sequence[Runner], results: Results) -> Any:
    """Ask one example; add findings, violations and the kept case to the results.

    Args:
        source: the probe that has drawn the example, or the corpus's entry.
        title: of violations.
        example: what the check works on.
        runners: of the subjects.
        results: what is added to.

    Returns:
        What the check has prepared for all of them.
    """
    check, drawn = source.check, isinstance(source, Probe)
    case, shared = check.case_of(example), check.prepare(example)
    least = least_level(source.rule, source.level)
    for runner in runners:
        findings, rule = runner(check, example, shared), source.rule
        failed = breaks(findings)
        if not failed or worst(findings).is_of_values:  # a time-out has no values, and no diagnosis
            of_case = title if isinstance(source, Probe) else source.shows
            answers = runner.answers
            if answers is not None:  # a function may write its next result into the same memory
                answers = {name: array.copy() for name, array in answers.items()}
            kept = KeptCase(source.rule, source.id, of_case, check, example, failed, least, answers)
            results.kept[runner.name].add(kept)
        if failed:
            from conformance.judge.attribution import Failure, attribute

            before = earlier_checks(runner)
            failure = attribute(runner, Failure(rule, check, example, findings), shared)
            rule, findings = failure.rule, failure.findings
            runner.hear_rule(rule)
            violation = make_violation(rule, title, failure.check, runner, failure.example, findings)
            of_rule = least if rule == source.rule else least_level(rule, CORE)
            violation = replace(violation, before=before, probe=source.id, least=of_rule)
            if not runner.sizes.is_reported(violation.finding):
                results.add_violation(violation)
        results.add(rule, runner.name, findings, narrowest(example, case), drawn and check == AGREEMENT)
    return shared


def narrowest(example: object, case: Case) -> Case:
    """Of several calls one of 16 bits, because the error may be any one's; else its case."""
    several = example if isinstance(example, tuple) else ()
    return next((one for one in several if isinstance(one, Case) and one.dtype not in WIDE), case)


def make_violation(
    rule: str, title: str, check: Check[Example, Any], runner: Runner, example: Example, findings: list[Finding]
) -> Violation:
    """The violation that the findings show, of what no probe has asked. title: of what has."""
    return Violation(
        rule,
        runner.name,
        worst(findings),
        title,
        check,
        example,
        before=earlier_checks(runner),
        least=least_level(rule),
        probe=probe_id(rule, title),
    )


def earlier_checks(runner: Runner) -> tuple[Any, ...]:
    """The checks before the latest, as far as they are remembered."""
    return tuple(runner.log)[:-1]


def settle_violations(results: Results, settle: Settle) -> None:
    """Put in place of every violation what becomes of it."""
    pairs = [(violation, settle(violation)) for violation in results.violations.values()]
    results.violations = {}
    # First, because another violation of the same rule may stay.
    for violation, settled in pairs:
        if settled is None or settled.rule != violation.rule:
            results.rules[violation.rule, violation.subject].drop_broken()
            results.worst.pop(violation.key, None)
    for _, settled in pairs:
        if settled is not None:
            results.add_violation(replace(settled, before=()))
            dtype = "" if settled.case is None else settled.case.dtype
            results.rules[settled.rule, settled.subject].add_ratio(settled.ratio, dtype)
