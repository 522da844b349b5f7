"""Whether a failing case is wrong by itself, or only after other calls, or only now and then.

The case is asked again, alone, in a process that has called nothing. What is right there is a violation of ATT-13: with
the shortest run of earlier calls that makes it wrong, where one of those that are remembered does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.features import rule_of
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT, CALLS_IN_ORDER, Check, Example
from conformance.checks.comparison import breaks, worst
from conformance.checks.findings import DependsOnCalls, Finding, NotReproducible
from conformance.checks.levels import STATE_RULE
from conformance.checks.results import Violation
from conformance.judge.attribution import find_rule
from conformance.runner.fresh import FreshProcesses
from conformance.runner.in_process import Logged, Runner, Step
from conformance.subjects.callables import Target

TIMES = 3
"""How often a case is asked again."""


class Reproduction:
    """Asks failing cases again. target: how another process finds the subject; None where none does."""

    def __init__(self, runner: Runner, target: Target | None) -> None:
        self.runner = runner
        self.fresh = FreshProcesses(target, runner.time_limit)
        self.shown = False  # one run of calls is enough

    def settle(self, violation: Violation) -> Violation | None:
        """The violation itself, one of ATT-13 if its case is not wrong alone, or None if other rules speak of it."""
        if violation.check.stands or violation.finding.kind == "took_too_long":
            return violation
        if violation.check == AFTER_OTHER_CALLS:
            return self.settle_history(violation)
        last = step(violation.check, violation.example)
        answers, fresh = self.run_alone(last)
        if all(breaks(answer, violation.finding.level) for answer in answers):
            return violation
        return self.reproduce_after(violation.before, last, violation) or state_violation(
            violation, NotReproducible(fresh, violation.finding)
        )

    def run_alone(self, call: Step) -> tuple[list[list[Finding]], bool]:
        """(findings of several calls, whether in a fresh process); in this process if there is no other."""
        answers = self.fresh.ask([call] * TIMES)
        if answers is not None:
            return answers, True
        return [self.runner(*call) for _ in range(TIMES)], False

    def reproduce_after(self, logged: Sequence[Logged], last: Step, violation: Violation) -> Violation | None:
        """The violation of the last call after the fewest of those before it; None where no fresh process shows it."""
        before = [] if self.shown else [step(*one) for one in logged]
        level = violation.finding.level
        if self.shown or not before or not self.wrong([*before, last], level):
            return None
        some = (n for n in (1, 2, 4, 8, 16) if n < len(before) and self.wrong([*before[-n:], last], level))
        count = next(some, len(before))
        fewest = list(before[-count:])
        # Half as many were too few, so it takes one of the others.
        single = next((one for one in reversed(fewest[: (count + 1) // 2]) if self.wrong([one, last], level)), None)
        fewest = fewest if single is None else [single]
        shown = self.wrong([*fewest, last], level)
        if shown is None:  # only now and then
            return None
        self.shown = True
        return sequence_violation(violation, [*fewest, last], shown)

    def wrong(self, steps: list[Step], level: str) -> Finding | None:
        """The finding of the last step, where in a fresh process it is wrong at this level or below."""
        answers = self.fresh.ask(steps)
        return worst(answers[-1]) if answers is not None and breaks(answers[-1], level) else None

    def settle_history(self, violation: Violation) -> Violation | None:
        """Of several calls that were judged one by one: the first that is wrong in this order only."""
        cases: tuple[Case, ...] = violation.example
        steps = [step(AGREEMENT, case) for case in cases]
        answers = self.fresh.ask(steps) or [self.runner(*one) for one in steps]
        level = violation.finding.level
        broken = [number for number, findings in enumerate(answers) if breaks(findings, level)]
        if not broken:
            return state_violation(violation, NotReproducible(self.fresh.target is not None, violation.finding))
        for number in broken:
            alone, fresh = self.run_alone(steps[number])
            if not all(breaks(answer, level) for answer in alone):
                shown = self.reproduce_after([one[:2] for one in steps[:number]], steps[number], violation)
                unsteady = NotReproducible(fresh, worst(answers[number]))
                return shown or state_violation(replace_example(violation, steps[number]), unsteady)
        first = broken[0]
        finding = worst(self.runner.sizes.learn_limits(cases[first], answers[first]))
        new = replace(replace_example(violation, steps[first]), finding=finding)
        if finding.is_of_values and not new.rounds_16_bits:
            return replace(new, rule=find_rule(self.runner, new.case, answers[first]))
        return replace(new, rule=rule_of("dtype" if new.rounds_16_bits else "cross", new.case.operation))


def step(check: Check[Example, Any], example: Example) -> Step:
    return check, example, check.prepare(example)


def replace_example(violation: Violation, last: Step) -> Violation:
    return replace(violation, check=last[0], example=last[1], uncut=None)


def state_violation(violation: Violation, detail: NotReproducible | DependsOnCalls) -> Violation:
    """Under the rule of state; its case stays."""
    title = violation.title if violation.rule == STATE_RULE else f"{violation.title} ({violation.rule})"
    return replace(
        violation, rule=STATE_RULE, title=title, uncut=None, finding=replace(violation.finding, detail=detail)
    )


def sequence_violation(violation: Violation, steps: list[Step], finding: Finding) -> Violation:
    """A violation whose example is the calls that show it, in order."""
    check, example, _ = steps[-2]
    detail = DependsOnCalls(check.case_of(example), len(steps) - 2, finding)
    shown = state_violation(replace(violation, finding=finding), detail)
    return replace(shown, check=CALLS_IN_ORDER, example=tuple((check.name, example) for check, example, _ in steps))
