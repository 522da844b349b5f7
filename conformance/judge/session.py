"""A judgement as questions that can be asked one at a time, in any order, each with the verdict that all of them give.

`judgement.py` asks the same in one go. What a question presupposes (what the subject takes at all, and whether it gets
empty rows right) is asked once, when the first question needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache, cached_property

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration, known
from conformance.cases.signatures import parameters_never_given
from conformance.checks.probe import Probe
from conformance.checks.results import Tally, Violation
from conformance.diagnosis.naming import diagnosed
from conformance.judge.checking import EFFORTS, SHRINKING
from conformance.judge.judged_rules import JUDGED
from conformance.judge.judgement import (
    NOTHING_ELSE,
    PLAIN_CALL,
    Claim,
    Judgement,
    claims,
    narrowed,
    plain,
)
from conformance.judge.run import STUCK, run_refusal, silent
from conformance.judge.skipped import missing, some_cases
from conformance.judge.thresholds import FIRST, with_thresholds
from conformance.operations.corpus import entries_for
from conformance.operations.refusals import refusals_of
from conformance.runner.in_process import TIME_LIMIT, Examiner, judging
from conformance.runner.in_subprocess import ChildExaminer
from conformance.subjects.targets import Target

PRINTS, FROZEN = "prints nothing", "frozen cases"
EMPTY_ROWS = "ATT-6"


class NotAsked(Exception):
    """Why a question cannot be asked of this subject."""


@dataclass(frozen=True)
class Question:
    """kind: "claim" (what it takes), "frozen", "probe", "refusal" or "printed"."""

    kind: str
    rule: str
    title: str

    def __str__(self) -> str:
        return f"{self.rule} {self.title}"


class Trial:
    """All that is to be asked of one subject. rules: only these. ValueError where the target cannot be judged."""

    def __init__(
        self,
        target: Target,
        *,
        effort: str = "default",
        seed: int = 0,
        rules: Collection[str] | None = None,
        time_limit: float = TIME_LIMIT,
        isolate: bool = False,
        shrink: bool = True,
    ) -> None:
        known("effort", [effort], EFFORTS)
        known("rules", rules or [], JUDGED)
        self.target, self.operation, self.rules = target, target.operation, rules
        self.examiner = ChildExaminer(target, time_limit) if isolate else Examiner(target.make(), time_limit)
        shrinking = SHRINKING if shrink else 0.0
        asked = self.examiner, self.operation, EFFORTS[effort], seed, None, silent, shrinking
        self.judgement = Judgement(*asked, target=target)
        self.tried = cache(self.try_one)
        self.refused: set[str] = set()
        self.violated = 0

    @property
    def never_given(self) -> str:
        """Which parameters of the function no case gives; empty where there are none."""
        names = self.examiner.never_given
        return parameters_never_given(names, self.operation) if names else ""

    # --- what is asked ---

    @cached_property
    def claims(self) -> dict[str, Claim]:
        declaration = self.examiner.declaration
        dtype = declaration.dtypes[0]
        call = Claim("CALL", "", plain(self.operation, declaration, dtype))
        return {PLAIN_CALL: call} | {claim.title: claim for claim in claims(self.operation, declaration)}

    def questions(self) -> list[Question]:
        """In the order in which a judgement asks them."""
        found = [Question("claim", claim.rule, title) for title, claim in self.claims.items()]
        found += sorted(self.about(self.examiner.declaration), key=lambda question: question.rule != EMPTY_ROWS)
        if "refusals" in self.examiner.declaration:
            own = refusals_of(self.operation, self.examiner.declaration)
            found += [Question("refusal", refusal.rule, refusal.title) for refusal in own]
        found.append(Question("printed", "CALL", PRINTS))
        chosen = self.rules or JUDGED
        return list(dict.fromkeys(question for question in found if question.rule in chosen))

    def about(self, declaration: Declaration) -> list[Question]:
        """What is asked, rule by rule, of a subject that takes all that it declares."""
        frozen = dict.fromkeys(entry.rule for entry in entries_for({self.operation}, declaration))
        probes = self.judgement.probes(declaration)
        found = [Question("frozen", rule, FROZEN) for rule in frozen]
        return found + [Question("probe", probe.rule, probe.title) for probe in probes]

    # --- asking ---

    def ask(self, question: Question) -> Violation | None:
        """The violation that is found; NotAsked where nothing can be asked."""
        # Warnings are for whoever runs this to see, and nothing that a subject is judged by.
        with warnings.catch_warnings(), judging():
            warnings.simplefilter("default")
            tally = self.tried(question)
            if tally.violations:
                diagnosed(tally, self.examiner)
                self.violated += 1
                if self.judgement.shrinking and self.violated <= FIRST:
                    with_thresholds(tally, self.examiner)
        found = next(iter(tally.violations.values()), None)
        return None if found is None else replace(found, target=self.target, time_limit=self.examiner.time_limit)

    def try_one(self, question: Question) -> Tally:
        if question.kind == "claim":
            if question.title != PLAIN_CALL:
                self.answers_at_all()
            return self.claimed(question.title)
        declaration = self.declaration
        if question.kind == "refusal":
            return self.refusal(question)
        if question.kind == "printed":
            return self.printed()
        declaration = declaration if question.rule == EMPTY_ROWS else self.forgiving
        return (self.thawed if question.kind == "frozen" else self.probed)(question, declaration)

    def claimed(self, title: str) -> Tally:
        claim, judgement = self.claims[title], self.fresh()
        if not judgement.takes(claim.rule, title, claim.cases, claim.unsure):
            self.refused.add(claim.name)
        return self.asked(judgement.tally, claim.name if claim.name in self.refused else "")

    def probed(self, question: Question, declaration: Declaration) -> Tally:
        judgement = self.fresh()

        def own(declaration: Declaration) -> list[Probe]:
            return [p for p in judgement.probes(declaration) if (p.rule, p.title) == (question.rule, question.title)]

        judgement.ask(own(declaration))
        if judgement.tally.rules:
            return judgement.tally

        def cases_of(declaration: Declaration) -> list[Case]:
            return [case for probe in own(declaration) for case in some_cases(probe)]

        return self.asked(judgement.tally, missing(cases_of, declaration))

    def thawed(self, question: Question, declaration: Declaration) -> Tally:
        judgement = self.fresh()
        if self.examiner.overrun < STUCK:
            entries = entries_for({self.operation}, declaration)
            judgement.ask_frozen(entry for entry in entries if entry.rule == question.rule)
        if judgement.tally.rules:
            return judgement.tally

        def cases_of(declaration: Declaration) -> list[Case]:
            return [e.case for e in entries_for({self.operation}, declaration) if e.rule == question.rule]

        return self.asked(judgement.tally, missing(cases_of, declaration))

    def refusal(self, question: Question) -> Tally:
        tally = Tally()
        for refusal in refusals_of(self.operation, self.declaration):
            if (refusal.rule, refusal.title) == (question.rule, question.title):
                run_refusal(refusal, self.examiner, tally)
        return self.asked(tally)

    def printed(self) -> Tally:
        judgement = self.fresh()
        if self.examiner.printed:
            judgement.found("CALL", PRINTS, f"prints to standard output: {self.examiner.printed[:80]!r}")
        return judgement.tally

    def fresh(self) -> Judgement:
        return replace(self.judgement, tally=Tally())

    def asked(self, tally: Tally, lacks: str = "") -> Tally:
        """lacks: what the function does not take."""
        if tally.rules:
            return tally
        if self.examiner.overrun >= STUCK:
            raise NotAsked(f"{STUCK} cases took longer than {self.examiner.time_limit:g} s, and nothing more is tried")
        why = f"it does not take {lacks}: " if lacks else ""
        raise NotAsked(f"{why}within what the function takes there is no such case")

    # --- what others presuppose ---

    def answers_at_all(self) -> None:
        if self.tried(Question("claim", "CALL", PLAIN_CALL)).violations:
            raise NotAsked(NOTHING_ELSE)

    @cached_property
    def declaration(self) -> Declaration:
        """Without what the subject claims and cannot take."""
        self.answers_at_all()
        for title, claim in self.claims.items():
            if title != PLAIN_CALL:
                self.holds(Question("claim", claim.rule, title))
        return narrowed(self.examiner.declaration, self.refused)

    @cached_property
    def forgiving(self) -> Declaration:
        """As a judgement goes on after empty rows: a subject that gets them wrong is asked for no more of them."""
        found = [question for question in self.about(self.declaration) if question.rule == EMPTY_ROWS]
        wrong = any(self.holds(question) is False for question in found)
        return self.declaration.promising(empty_rows="any") if wrong else self.declaration

    def holds(self, question: Question) -> bool | None:
        """None where it cannot be asked."""
        try:
            return not self.tried(question).violations
        except NotAsked:
            return None

    def close(self) -> None:
        self.examiner.close()
