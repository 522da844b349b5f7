"""The causes of a run's violations, each with one smallest case and the sizes at which it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from conformance.cases.expectations import CaseExample
from conformance.checks.findings import Threshold
from conformance.checks.levels import NO_ISOLATION
from conformance.checks.results import MOST_NUMBERS, KeptCase, Results, Violation, keep_violation
from conformance.diagnosis.cause import Cause, cause_kind
from conformance.diagnosis.causes import find_causes, has_wrong_numbers, largest_error
from conformance.diagnosis.evidence import ask_kept
from conformance.diagnosis.explanation import judge_mistake, learn_condition
from conformance.diagnosis.pattern import find_pattern
from conformance.judge.smallest_case import cut_down
from conformance.judge.thresholds import find_thresholds
from conformance.judge.trial import Settle, accept_violation
from conformance.mistakes.call import Call
from conformance.mistakes.condition import past
from conformance.mistakes.mistake import Mistake
from conformance.runner.in_process import Runner

MANY = 4
"""Causes that get a smallest case and sizes within the whole time; later ones get less, as the first say most."""
REFUTING = 12
"""Passing examples of other sizes that a known mistake is held against; each is asked once more."""
SIZES = 0.6
"""What its sizes get on top of a cause's time, as a part of it: each is one call; a smaller case takes several."""


def explain_results(results: Results, runner: Runner, seconds: float, settle: Settle = accept_violation) -> list[Cause]:
    """Find the causes of all violations, and make the case of each cause small.

    Args:
        results: of a run; the violations in it that lead a cause get their smallest case and sizes.
        runner: of the subject.
        seconds: for the smaller case of one cause; 0 to make none.
        settle: says whether a smaller case shows the same violation alone; see `Executor.settle`.

    Returns:
        The causes, those of the lowest level first.
    """
    if not seconds:
        return find_causes(results, runner)
    for key, violation in results.violations.items():
        numeric = violation.subject == runner.name and has_wrong_numbers(violation)
        if numeric and keep_violation(violation).size > MOST_NUMBERS:
            results.violations[key] = cut_down(violation, runner, seconds)  # to be asked again
    causes = find_causes(results, runner)
    end = time.monotonic() + MANY * seconds
    smaller = []
    for number, cause in enumerate(causes):
        room = min(seconds, max(end - time.monotonic(), seconds / MANY))
        if number >= MANY:
            room = seconds / MANY
        smaller.append(make_small(cause, runner, room, settle, sized=number < MANY))
    left = []
    for before, cause in zip(causes, smaller, strict=True):
        own = results.violations.get(before.lead.key) is before.lead
        if own:
            results.violations[before.lead.key] = cause.lead
        # Without its name, what stood behind violations of other causes is a part of these.
        if own or before.diagnosis is None or cause.diagnosis is not None or len(causes) == 1:
            left.append(cause)
    return left if len(left) == len(causes) else [replace(cause, excuses=()) for cause in left]


def make_small(cause: Cause, runner: Runner, seconds: float, settle: Settle, sized: bool) -> Cause:
    """The cause with the smallest case that still shows it, and the sizes at which it shows."""
    lead = cause.lead
    if not lead.depends_on_state and not runner.overrun:
        mistake = None if cause.diagnosis is None else cause.diagnosis.mistake
        smaller = cut_down(lead, runner, seconds, explains_case(runner, mistake))
        lead = smaller if settle(smaller) is smaller else lead
        cause = replace(cause, excuses=excuse_case(cause.excuses, lead, runner))
    passing: list[CaseExample] = []
    if sized:
        lead = replace(lead, threshold=find_thresholds(lead, runner, SIZES * seconds, passing))
    cause = replace(cause, violations=(lead, *cause.violations[1:]))
    if cause.diagnosis is None and cause.condition is not None and not cause.condition.holds(Call(lead.case)):
        cause = replace(cause, condition=None)
    return withdraw_refuted(choose_by_thresholds(cause, lead.threshold), passing, runner)


def choose_by_thresholds(cause: Cause, thresholds: Collection[Threshold]) -> Cause:
    """Of a mistake with several sizes that no case told apart, choose the one whose size the thresholds have."""
    if cause.diagnosis is None:
        return cause
    sizes = {size for one in thresholds for size in (one.multiple, one.above) if size}
    sizes |= {size for one in thresholds if one.kind == "first" for size in (one.wrong[0], one.last_right)}
    mistake = cause.diagnosis.mistake
    others = [one for one in cause.diagnosis.alternatives if one.id != mistake.id]
    for one in (mistake, *cause.diagnosis.alternatives):
        numbers = (getattr(value, "n", value) for value in one.values.values())
        if one.id == mistake.id and any(type(number) is int and number in sizes for number in numbers):
            diagnosis = replace(cause.diagnosis, mistake=one, alternatives=tuple(others))
            return replace(cause, diagnosis=diagnosis, condition=one.condition)
    return cause


def withdraw_refuted(cause: Cause, passing: Sequence[CaseExample], runner: Runner) -> Cause:
    """Withdraw a known mistake that would show in an example that passes, unless it shows past a larger size only."""
    lead, own = cause.lead, ask_kept(runner, keep_violation(cause.lead)) if passing else None
    if cause.diagnosis is None or own is None:
        return cause
    kept = [KeptCase(lead.rule, lead.probe, lead.title, lead.check, one, failed=False) for one in passing]
    answered = [ask_kept(runner, one) for one in sorted(kept, key=lambda one: one.size)[:REFUTING]]
    evidence = [one for one in answered if one is not None and not one.wrong]
    for mistake in (cause.diagnosis.mistake, *cause.diagnosis.alternatives):
        against = [one for one in evidence if judge_mistake(mistake, one) == "against"]
        learned = learn_condition([own], against) if against else None
        if (
            learned is not None
            and learned == past(learned.axis, learned.past)
            and mistake.condition.axis in ("", learned.axis)
        ):
            mistake = mistake.limit(replace(mistake.condition, axis=learned.axis, past=learned.past))
        if not any(judge_mistake(mistake, one) == "against" for one in against):
            others = tuple(one for one in cause.diagnosis.alternatives if one.id != mistake.id)
            diagnosis = replace(cause.diagnosis, mistake=mistake, alternatives=others)
            return replace(cause, diagnosis=diagnosis, condition=mistake.condition)
    return replace(cause, kind=cause_kind(lead), diagnosis=None, condition=None, pattern=find_pattern(own))


def excuse_case(
    excuses: tuple[Mapping[str, str], ...], lead: Violation, runner: Runner
) -> tuple[Mapping[str, str], ...]:
    """The conventions under which the smallest case conforms as well."""
    evidence = ask_kept(runner, keep_violation(lead)) if excuses else None
    if evidence is None:
        return excuses
    return tuple(one for one in excuses if one == NO_ISOLATION or largest_error(one, [evidence]) <= 1)


def explains_case(runner: Runner, mistake: Mistake | None) -> Callable[[Violation, CaseExample], bool]:
    """Whether a smaller case that fails is wrong by the same mistake, where one is known."""

    def explains(violation: Violation, example: CaseExample) -> bool:
        if mistake is None:
            return True
        kept = KeptCase(violation.rule, violation.probe, violation.title, violation.check, example, failed=True)
        evidence = ask_kept(runner, kept)
        return evidence is not None and judge_mistake(mistake, evidence) == "explains"

    return explains
