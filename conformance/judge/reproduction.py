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
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT, CALLS_IN_ORDER, Check
from conformance.checks.comparison import breaks, worst
from conformance.checks.findings import DependsOnCalls, Finding, NotReproducible
from conformance.checks.levels import STATE_RULE
from conformance.checks.results import Violation
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

    def settle(self, found: Violation) -> Violation | None:
        """The violation itself, one of ATT-13 if its case is not wrong alone, or None if other rules speak of it."""
        if found.check.stands or found.finding.kind == "took_too_long":
            return found
        if found.check == AFTER_OTHER_CALLS:
            return self.settle_history(found)
        last = step(found.check, found.example)
        answers, fresh = self.run_alone(last)
        if all(breaks(answer, found.finding.level) for answer in answers):
            return found
        return self.reproduce_after(found.before, last, found) or state_violation(
            found, NotReproducible(fresh, found.finding)
        )

    def run_alone(self, asked: Step) -> tuple[list[list[Finding]], bool]:
        """(findings of several calls, whether in a fresh process); in this process if there is no other."""
        answers = self.fresh.ask([asked] * TIMES)
        if answers is not None:
            return answers, True
        return [self.runner(*asked) for _ in range(TIMES)], False

    def reproduce_after(self, logged: Sequence[Logged], last: Step, found: Violation) -> Violation | None:
        """The violation of the last call after the fewest of those before it; None where no fresh process shows it."""
        before = [] if self.shown else [step(*one) for one in logged]
        level = found.finding.level
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
        return sequence_violation(found, [*fewest, last], shown)

    def wrong(self, steps: list[Step], level: str) -> Finding | None:
        """The finding of the last step, where in a fresh process it is wrong at this level or below."""
        answers = self.fresh.ask(steps)
        return worst(answers[-1]) if answers is not None and breaks(answers[-1], level) else None

    def settle_history(self, found: Violation) -> Violation | None:
        """Of several calls that were judged one by one: the first that is wrong in this order only."""
        cases: tuple[Case, ...] = found.example
        steps = [step(AGREEMENT, case) for case in cases]
        answers = self.fresh.ask(steps) or [self.runner(*one) for one in steps]
        level = found.finding.level
        broken = [number for number, findings in enumerate(answers) if breaks(findings, level)]
        if not broken:
            return state_violation(found, NotReproducible(self.fresh.target is not None, found.finding))
        for number in broken:
            alone, fresh = self.run_alone(steps[number])
            if not all(breaks(answer, level) for answer in alone):
                shown = self.reproduce_after([one[:2] for one in steps[:number]], steps[number], found)
                unsteady = NotReproducible(fresh, worst(answers[number]))
                return shown or state_violation(replace_example(found, steps[number]), unsteady)
        first = broken[0]
        finding = worst(self.runner.sizes.learn_limits(cases[first], answers[first]))
        new = replace(replace_example(found, steps[first]), finding=finding)
        return replace(new, rule=rule_of("dtype" if new.rounds_16_bits else "cross", new.case.operation))


def step(check: Check[Any, Any], example: Any) -> Step:
    return check, example, check.prepare(example)


def replace_example(found: Violation, last: Step) -> Violation:
    return replace(found, check=last[0], example=last[1], uncut=None)


def state_violation(found: Violation, detail: NotReproducible | DependsOnCalls) -> Violation:
    """Under the rule of state; its case stays."""
    title = found.title if found.rule == STATE_RULE else f"{found.title} ({found.rule})"
    return replace(found, rule=STATE_RULE, title=title, uncut=None, finding=replace(found.finding, detail=detail))


def sequence_violation(found: Violation, steps: list[Step], finding: Finding) -> Violation:
    """A violation whose example is the calls that show it, in order."""
    check, example, _ = steps[-2]
    detail = DependsOnCalls(check.case_of(example), len(steps) - 2, finding)
    shown = state_violation(replace(found, finding=finding), detail)
    return replace(shown, check=CALLS_IN_ORDER, example=tuple((check.name, example) for check, example, _ in steps))
