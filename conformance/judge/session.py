"""A judgement as questions that can be asked one at a time, in any order, each with the verdict that all of them give.

`judgement.py` asks the same in one go. What a question presupposes (what the subject takes at all, and whether it gets
empty rows right) is asked once, when the first question needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from functools import cache, cached_property

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration, validate_names
from conformance.cases.signatures import describe_never_given
from conformance.checks.judged_rules import JUDGED
from conformance.checks.levels import DEFAULT, LEVELS, ROBUST, STRICT, is_required
from conformance.checks.results import Results
from conformance.diagnosis.cause import Cause
from conformance.judge.causes import MANY, explain_results
from conformance.judge.checking import EFFORTS, SHRINKING
from conformance.judge.judgement import (
    NOTHING_ELSE,
    PLAIN_CALL,
    PRINTS,
    Claim,
    Judgement,
    Question,
    claims,
    narrow_declaration,
    plain_claim,
)
from conformance.judge.run import STUCK, silent
from conformance.judge.skipped import missing_features, some_cases
from conformance.runner.in_process import TIME_LIMIT, judging
from conformance.runner.in_subprocess import runner_for
from conformance.subjects.targets import Target


class NotAsked(Exception):
    """Why a question cannot be asked of this subject."""


def cases_about(question: Question) -> list[Case]:
    """Some cases of a probe, or the corpus's."""
    return some_cases(question.about) if question.kind == "probe" else [entry.case for entry in question.about]


class JudgeSession:
    """All that is to be asked of one subject. rules: only these. profile: decides which questions it fails.

    ValueError where the target cannot be judged.
    """

    def __init__(
        self,
        target: Target,
        *,
        effort: str = "default",
        seed: int = 0,
        rules: Collection[str] | None = None,
        profile: str = DEFAULT,
        time_limit: float = TIME_LIMIT,
        isolate: bool | None = None,
        shrink: bool = True,
    ) -> None:
        validate_names("effort", [effort], EFFORTS)
        validate_names("profile", [profile], LEVELS)
        self.profile = profile
        self.operation, self.rules = target.operation, validate_names("rules", rules, JUDGED) if rules else None
        self.runner = runner_for(target, time_limit, isolate)
        self.target = target = self.runner.target or target
        shrinking = SHRINKING if shrink else 0.0
        asked = self.runner, self.operation, EFFORTS[effort], seed, None, silent, shrinking
        self.judgement = Judgement(*asked, target=target)
        self.tried = cache(self.try_one)
        self.refused: set[str] = set()
        self.explained = 0

    @property
    def never_given(self) -> str:
        """Which parameters of the function no case gives; empty where there are none."""
        names = self.runner.never_given
        return describe_never_given(names, self.operation) if names else ""

    # --- what is asked ---

    @cached_property
    def claims(self) -> dict[str, Claim]:
        asked = [plain_claim(self.operation, self.runner.declaration)]
        asked += claims(self.operation, self.runner.declaration)
        return {claim.title: claim for claim in asked}

    def questions(self) -> list[Question]:
        """In the order in which a judgement asks them."""
        found = [Question("claim", claim.rule, title) for title, claim in self.claims.items()]
        about = self.judgement.questions(self.runner.declaration)
        found += sorted(about, key=lambda question: not question.concerns_empty_rows)
        found.append(Question("printed", "CALL", PRINTS))
        chosen = self.rules or JUDGED
        return list(dict.fromkeys(question for question in found if question.rule in chosen))

    # --- asking ---

    def ask(self, question: Question) -> Cause | None:
        """The cause of the lowest level behind what is found, with its smallest case; NotAsked where nothing can be."""
        # Warnings are for whoever runs this to see, and nothing that a subject is judged by.
        with warnings.catch_warnings(), judging():
            warnings.simplefilter("default")
            results = self.tried(question)
            if not results.violations:
                return None
            results.set_worst()
            self.explained += 1
            seconds = self.judgement.shrinking if self.explained <= MANY else 0.0
            found = explain_results(results, self.runner, seconds, self.judgement.settle)[0]
        lead = replace(found.lead, target=self.target, time_limit=self.runner.time_limit)
        return replace(found, violations=(lead, *found.violations[1:]))

    def try_one(self, question: Question) -> Results:
        if question.kind == "claim":
            if question.title != PLAIN_CALL:
                self.answers_at_all()
            return self.check_claim(question.title)
        declaration = self.declaration
        if question.kind == "printed":
            return self.check_printing()
        if question.kind != "refusal" and not question.concerns_empty_rows:
            declaration = self.forgiving
        return self.answer_question(question, declaration)

    def check_claim(self, title: str) -> Results:
        claim, judgement = self.claims[title], self.fresh_judgement()
        if not judgement.takes(claim):
            self.refused.add(claim.name)
        return self.require_cases(judgement.results, claim.name if claim.name in self.refused else "")

    def answer_question(self, question: Question, declaration: Declaration) -> Results:
        """What is found within what the function takes; NotAsked where it takes no such case."""
        judgement = self.fresh_judgement()

        def same(declaration: Declaration) -> list[Question]:
            return [other for other in judgement.questions(declaration) if other == question]

        for other in same(declaration):
            if self.runner.overrun < STUCK:
                judgement.answer(other)
        if judgement.results.rules:
            return judgement.results

        def cases_of(declaration: Declaration) -> list[Case]:
            return [case for other in same(declaration) for case in cases_about(other)]

        return self.require_cases(
            judgement.results, missing_features(cases_of, declaration) if question.kind != "refusal" else ""
        )

    def check_printing(self) -> Results:
        judgement = self.fresh_judgement()
        judgement.ask_what_is_printed()
        return judgement.results

    def fresh_judgement(self) -> Judgement:
        return replace(self.judgement, results=Results())

    def require_cases(self, results: Results, lacks: str = "") -> Results:
        """lacks: what the function does not take."""
        if results.rules:
            return results
        if self.runner.overrun >= STUCK:
            raise NotAsked(f"{STUCK} cases took longer than {self.runner.time_limit:g} s, and nothing more is tried")
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
        return narrow_declaration(self.runner.declaration, self.refused)

    @cached_property
    def forgiving(self) -> Declaration:
        """As a judgement goes on after empty rows: a subject that gets them wrong is asked for no more of them."""
        found = [question for question in self.judgement.questions(self.declaration) if question.concerns_empty_rows]
        wrong = any(self.holds(question, ROBUST) is False for question in found)
        return self.declaration.promising(empty_rows="any") if wrong else self.declaration

    def holds(self, question: Question, profile: str = STRICT) -> bool | None:
        """Whether nothing is violated that the profile asks for; None where the question cannot be asked."""
        try:
            return not any(is_required(found.level, profile) for found in self.tried(question).violations.values())
        except NotAsked:
            return None

    def close(self) -> None:
        self.runner.close()
