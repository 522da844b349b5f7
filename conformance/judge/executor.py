"""The executor: asks a subject the questions of its plan, all of them or one at a time.

A later question depends on the answers to earlier ones (see `plan.py`): these are asked once, when the first question
needs them. So each question has the verdict that all of them together give.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from conformance.cases.case import Case
from conformance.cases.declaration import BASIC, Declaration
from conformance.cases.signatures import describe_never_given, operation_features
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT, CALLS_IN_ORDER, NOTHING, Probe
from conformance.checks.findings import Printed, Raised, wrong_dtype
from conformance.checks.levels import JUDGED, ROBUST, is_required
from conformance.checks.results import Key, Results, Violation
from conformance.judge.plan import (
    EMPTY_ROWS,
    PLAIN_CALL,
    PRINTS,
    WIDE_WEIGHTS,
    Claim,
    Question,
    dtype_claims,
    feature_claims,
    list_claims,
    list_probes,
    list_questions,
    narrow_declaration,
    plain_claim,
    scaling_claims,
)
from conformance.judge.shared_probes import Order, SharedProbes
from conformance.judge.trial import (
    STUCK,
    Progress,
    ask_probe,
    ask_question,
    ask_questions,
    ignore_progress,
    make_violation,
    settle_violations,
)
from conformance.runner.in_process import Runner, failed_call, judge_scope
from conformance.subjects.callables import Target

if TYPE_CHECKING:
    from conformance.diagnosis.cause import Cause
    from conformance.judge.reproduction import Reproduction
from collections.abc import Callable

from conformance.cases.declaration import FEATURES, MASK_KINDS, SIMPLEST_FIRST
from conformance.cases.features import features_of
from conformance.sampling.draws import draw_cases

UNMASKED = "unmasked"
NOTHING_ELSE = "the plainest call fails, and nothing else was tried"


class NotAsked(Exception):
    """Why a question cannot be asked of this subject."""


class ClaimAnswer(NamedTuple):
    """Whether a subject takes what it claims. results: what counts of the answer, if the rules are among the chosen."""

    claim: Claim
    results: Results
    refused: bool


class Executor:
    """Asks one subject what its plan holds.

    Args:
        runner: of the subject.
        operation: what it is to compute.
        examples: cases for a probe of weight 1.
        seed: of the run; every probe has its own by it.
        rules: only these; all for None.
        progress: is called after every case.
        shrinking: seconds for the smaller case of one cause; 0 to make none.
        target: how another process finds the subject, to tell what depends on earlier calls.
        shared: workers that take some of the probes.

    Attributes:
        results: of `run`, which grow while it runs.
        causes: of the violations in them.
        untried: why not everything was asked; empty if it was.
    """

    def __init__(
        self,
        runner: Runner,
        operation: str,
        examples: int,
        seed: int,
        *,
        rules: Collection[str] | None = None,
        progress: Progress = ignore_progress,
        shrinking: float = 0.0,
        target: Target | None = None,
        shared: SharedProbes | None = None,
    ) -> None:
        self.runner, self.operation, self.target = runner, operation, target
        self.examples, self.seed, self.rules = examples, seed, rules
        self.progress, self.shrinking, self.shared = progress, shrinking, shared
        self.results, self.causes, self.untried = Results(), list["Cause"](), ""
        self.ordered: Declaration | None = None
        self.claim_answers: dict[str, ClaimAnswer] = {}
        self.explained = 0

    # --- all questions ---

    def run(self) -> None:
        """Ask everything, and look for the causes of all violations."""
        self.order(self.runner.declaration)  # most functions take what they claim
        self.include(self.plain_answer.results)
        if self.plain_answer.refused:
            self.untried = NOTHING_ELSE
            self.tell_dtypes(self.runner.declaration)
        else:
            for claim in self.claims():
                self.include(self.ask_claim(claim).results)
            self.ask_beyond_claims(self.declaration)
        if self.runner.overrun >= STUCK:
            limit = f"{self.runner.time_limit:g} s"
            self.untried = f"after {STUCK} cases that took longer than {limit} nothing else was tried"
        self.include(self.check_printing())
        self.results.set_worst()
        self.causes = self.explain(self.results, self.shrinking)

    def ask_beyond_claims(self, declaration: Declaration) -> None:
        """Ask how well it answers. declaration: what it has been seen to take."""
        self.order(declaration)
        rows = self.results if self.rules is None or EMPTY_ROWS in self.rules else Results()
        for question in self.row_questions(declaration):
            include_results(rows, self.ask(question, rows.violations))
        declaration = self.excuse_empty_rows(declaration, rows)
        self.order(declaration)
        questions = [one for one in self.questions(declaration) if not one.concerns_empty_rows]
        for question in questions:
            if question.kind == "frozen":
                self.include(self.ask(question))
        self.ask_probes([question.about for question in questions if question.kind == "probe"])
        for question in questions:
            if question.kind == "refusal":
                self.include(self.ask(question))

    def explain(self, results: Results, seconds: float) -> list[Cause]:
        """Find the causes of all violations. Only a subject that has some needs the diagnosis loaded."""
        if not results.violations:
            return []
        from conformance.judge.causes import explain_results

        return explain_results(results, self.runner, seconds, self.settle)

    def include(self, results: Results) -> None:
        include_results(self.results, results)

    def questions(self, declaration: Declaration) -> list[Question]:
        """How well it answers: what is asked of a subject that takes all that it declares."""
        probes = [*self.probes(declaration)]
        return list_questions(self.operation, self.runner.declaration, declaration, self.rules, probes)

    def row_questions(self, declaration: Declaration) -> list[Question]:
        """Those about rows that allow nothing, which are asked first, also where other rules alone are chosen."""
        probes = [*self.probes(declaration)]
        questions = list_questions(self.operation, self.runner.declaration, declaration, [EMPTY_ROWS], probes)
        return [question for question in questions if question.concerns_empty_rows]

    def probes(self, declaration: Declaration) -> Iterator[Probe]:
        return list_probes(self.operation, self.runner.declaration, declaration)

    # --- one question ---

    def ask(self, question: Question, known: Mapping[Key, Violation] | None = None) -> Results:
        """What a question of the plan finds. known: violations; what does not stand before them is not settled."""
        results = Results()
        if self.runner.overrun < STUCK:
            results = ask_question(question, [self.runner], self.examples, self.seed, self.report_progress)
        self.settle_results(results, self.results.violations if known is None else known)
        return results

    def settle_results(self, results: Results, known: Mapping[Key, Violation]) -> None:
        def settle(violation: Violation) -> Violation | None:
            new = violation.stands_before(known.get(violation.key))
            return self.settle(violation) if new else violation

        settle_violations(results, settle)

    @cached_property
    def reproduction(self) -> Reproduction:
        from conformance.judge.reproduction import Reproduction

        return Reproduction(self.runner, self.target)

    def settle(self, violation: Violation) -> Violation | None:
        """What becomes of a violation once its case has been asked alone; None where others say the same."""
        settled = self.reproduction.settle(violation)
        if settled is None or (violation.uncut is None and self.runner.sizes.report_again(settled.finding)):
            return None
        alone = violation.check == AFTER_OTHER_CALLS and settled.check == AGREEMENT and not settled.depends_on_state
        return None if alone and self.results.violations else settled

    def check_printing(self) -> Results:
        """Standard output is the judge's: a function that prints to it is in violation."""
        results = Results()
        if self.runner.printed:
            findings = failed_call(Printed(self.runner.printed[:80]))
            results.add_violation(make_violation("CALL", PRINTS, NOTHING, self.runner, None, findings))
        return results

    # --- one question after the other, each by itself ---

    def list_all(self) -> list[Question]:
        """List all questions by what the subject claims, in the order in which `run` asks them."""
        said = self.runner.declaration
        claims = [plain_claim(self.operation, said), *list_claims(self.operation, said)]
        questions = [Question("claim", claim.rule, claim.title) for claim in claims]
        questions += sorted(self.questions(said), key=lambda question: not question.concerns_empty_rows)
        questions.append(Question("printed", "CALL", PRINTS))
        chosen = self.rules or JUDGED
        return list(dict.fromkeys(question for question in questions if question.rule in chosen))

    def find_cause(self, question: Question) -> Cause | None:
        """The cause of the lowest level behind what a question finds, with its smallest case.

        Raises:
            NotAsked: it cannot be asked of this subject.
        """
        # Warnings are for whoever runs this to see, and nothing that a subject is judged by.
        with warnings.catch_warnings(), judge_scope():
            warnings.simplefilter("default")
            results = self.results_of(question)
            if not results.violations:
                return None
            results.set_worst()
            from conformance.judge.causes import MANY

            self.explained += 1
            cause = self.explain(results, self.shrinking if self.explained <= MANY else 0.0)[0]
        lead = replace(cause.lead, target=self.target, time_limit=self.runner.time_limit)
        return replace(cause, violations=(lead, *cause.violations[1:]))

    def results_of(self, question: Question) -> Results:
        """What a question finds within what the subject takes; `NotAsked` where it takes no such case."""
        if question.kind == "claim":
            return self.results_of_claim(question)
        declaration = self.declaration
        if question.kind == "printed":
            return self.check_printing()
        if question.concerns_empty_rows:
            results = [self.row_results[question]] if question in self.row_results else []
        else:
            declaration = self.lenient_declaration
            results = [self.ask(one) for one in self.questions(declaration) if one == question]

        def cases_of(declaration: Declaration) -> list[Case]:
            cases: list[Case] = []
            for one in self.questions(declaration):
                if one == question and one.kind == "probe":
                    drawn = draw_cases(one.about.cases, DRAWN, 0)  # fewer, or none, where they are hard to draw
                    cases += [one.about.check.case_of(example) for _, example in drawn]
                elif one == question:
                    cases += [entry.case for entry in one.about]
            return cases

        merged = Results()
        for one in results:
            merged.include(one)
        missing = not merged.rules and question.kind != "refusal"
        return self.require_cases(merged, missing_features(cases_of, declaration) if missing else "")

    def results_of_claim(self, question: Question) -> Results:
        if question.title == PLAIN_CALL:
            return self.require_cases(self.plain_answer.results)
        self.require_plain_call()
        claim = next((claim for claim in self.claims() if claim.title == question.title), None)
        if claim is None:
            return self.require_cases(Results())
        answer = self.ask_claim(claim)
        return self.require_cases(answer.results, answer.claim.name if answer.refused else "")

    def require_cases(self, results: Results, lacks: str = "") -> Results:
        """The results, if there were cases. lacks: what the function does not take."""
        if results.rules:
            return results
        if self.runner.overrun >= STUCK:
            raise NotAsked(f"{STUCK} cases took longer than {self.runner.time_limit:g} s, and nothing more is tried")
        why = f"it does not take {lacks}: " if lacks else ""
        raise NotAsked(f"{why}within what the function takes there is no such case")

    def require_plain_call(self) -> None:
        if self.plain_answer.refused:
            raise NotAsked(NOTHING_ELSE)

    @property
    def never_given(self) -> str:
        """Which parameters of the function no case gives; empty where there are none."""
        names = self.runner.never_given
        return describe_never_given(names, self.operation) if names else ""

    # --- what it takes at all ---

    @cached_property
    def plain_answer(self) -> ClaimAnswer:
        return self.ask_claim(plain_claim(self.operation, self.runner.declaration))

    def claims(self) -> Iterator[Claim]:
        """Yield what it claims beyond a plain call: every dtype, then every feature in the dtypes that it takes."""
        said = self.runner.declaration
        dtypes = [*dtype_claims(self.operation, said)]
        yield from dtypes
        narrower = narrow_declaration(said, self.refused_names(dtypes))
        yield from feature_claims(self.operation, narrower)
        yield from scaling_claims(self.operation, narrower)

    def refused_names(self, claims: Iterable[Claim]) -> set[str]:
        return {answer.claim.name for answer in map(self.ask_claim, claims) if answer.refused}

    @cached_property
    def declaration(self) -> Declaration:
        """Without what the subject claims and cannot take."""
        self.require_plain_call()
        return narrow_declaration(self.runner.declaration, self.refused_names(self.claims()))

    @property
    def stated_declaration(self) -> Declaration:
        """What the subject says of itself, without keywords that nobody has named and that it does not know."""
        unknown = (one.claim.name for one in self.claim_answers.values() if one.claim.unsure and one.refused)
        return self.runner.declaration.remove_features(*unknown)

    @cached_property
    def row_results(self) -> dict[Question, Results]:
        return {question: self.ask(question) for question in self.row_questions(self.declaration)}

    @cached_property
    def lenient_declaration(self) -> Declaration:
        """A subject that gets empty rows wrong is asked for no more of them."""
        merged = Results()
        for results in (*(self.ask_claim(claim).results for claim in self.claims()), *self.row_results.values()):
            merged.include(results)
        return self.excuse_empty_rows(self.declaration, merged)

    def excuse_empty_rows(self, declaration: Declaration, results: Results) -> Declaration:
        """The declaration that promises nothing of empty rows, where the results show that they are wrong."""
        keeps = results.keeps(EMPTY_ROWS, self.runner.name, ROBUST)
        return declaration if keeps else declaration.add_conventions(empty_rows="any")

    def ask_claim(self, claim: Claim) -> ClaimAnswer:
        """Whether the subject answers a case, which is asked once; how well is asked later."""
        if claim.title not in self.claim_answers:
            self.claim_answers[claim.title] = self.ask_claim_anew(claim)
        return self.claim_answers[claim.title]

    def ask_claim_anew(self, claim: Claim) -> ClaimAnswer:
        results = self.ask_claim_cases(claim)
        refused = bool(results.violations)
        if not claim.name and any(map(raises, results.violations.values())):
            claim = replace(claim, name=self.find_basic())
        says_no = any(map(is_unknown_keyword, results.violations.values()))
        chosen = self.rules is None or claim.rule in self.rules or claim.rule == "CALL"
        if (claim.unsure and says_no) or not chosen:
            return ClaimAnswer(claim, Results(), refused)
        results.violations = {key: add_lacking(one, claim) for key, one in results.violations.items()}
        return ClaimAnswer(claim, results, refused)

    def ask_claim_cases(self, claim: Claim) -> Results:
        return ask_questions([claim.question(self.operation)], [self.runner], 1, self.seed, self.progress)

    def find_basic(self) -> str:
        """The feature without which the subject answers the plainest call, as one with a mask or a bias; else empty."""
        declaration = self.runner.declaration
        for feature in (name for name in BASIC if name in declaration.features & operation_features(self.operation)):
            others = [{*declaration.masks} - {kind} for kind in declaration.masks] if feature == UNMASKED else [()]
            narrower = (declaration.remove_features(feature, *unused) for unused in others)
            tried = (self.ask_claim_cases(plain_claim(self.operation, one)) for one in narrower)
            if any(results.rules and not results.violations for results in tried):
                return feature
        return ""

    def tell_dtypes(self, declaration: Declaration) -> None:
        """Where the plainest call raises an error in some dtypes alone, its violation has them as what is lacking."""
        if not any(map(raises, self.results.violations.values())):
            return
        first, *others = declaration.dtypes
        claims = dtype_claims(self.operation, declaration)
        failing = [claim.name for claim in claims if self.ask_claim_cases(claim).violations]
        if len(failing) < len(others):
            lacks, violations = (first, *failing), self.results.violations
            self.results.violations = {
                key: replace(one, lacks=lacks) if raises(one) else one for key, one in violations.items()
            }

    # --- probes that workers share ---

    def order(self, declaration: Declaration) -> None:
        """Have workers run the probes for what it takes; what they found with others is dropped."""
        if self.shared is not None and declaration != self.ordered:
            self.ordered = declaration
            order = Order(self.operation, declaration, self.examples, self.seed, self.rules)
            self.shared.order(order, self.runner.declaration)

    def ask_probes(self, probes: Iterable[Probe]) -> None:
        """Ask them in order; where that is ended early, all that workers have found is counted."""
        for index, probe in enumerate(probes):
            try:
                self.include(self.ask_shared_probe(probe, index))
            except BaseException:
                for outcome in () if self.shared is None else self.shared.outcomes_from(index):
                    self.results.include(outcome.results)
                raise

    def ask_shared_probe(self, probe: Probe, index: int) -> Results:
        """As `ask`, from a worker if one has taken the probe of that index."""
        outcome = None
        if self.shared is not None and self.runner.overrun < STUCK:
            outcome = self.shared.outcome(index, self.listen)
            self.listen()
        if outcome is None:
            results = ask_probe(probe, [self.runner], self.examples, self.seed, self.report_progress)
        else:
            self.runner.overrun += outcome.overrun
            self.runner.printed = self.runner.printed or outcome.printed
            results = outcome.results
        self.settle_results(results, self.results.violations)
        return results

    def report_progress(self, rule: str, title: str) -> None:
        self.progress(rule, title)
        self.listen()

    def listen(self) -> None:
        """Pass on the progress of workers."""
        for rule, title in () if self.shared is None else self.shared.read_news():
            self.progress(rule, title)

    def close(self) -> None:
        """End all processes."""
        self.runner.close()
        if self.shared is not None:
            self.shared.close()


def include_results(whole: Results, part: Results) -> None:
    """Add a part to the whole. Calls in order, which can be seen again, stand before what cannot."""
    for key, violation in part.violations.items():
        known = whole.violations.get(key)
        in_order = known is not None and violation.check == CALLS_IN_ORDER and known.check != CALLS_IN_ORDER
        if known is not None and in_order and is_required(violation.level, known.level):
            del whole.violations[key]
    whole.include(part)


def add_lacking(violation: Violation, claim: Claim) -> Violation:
    """The violation with what the subject lacks, if it raises an error for it, as for what it does not support.

    A weight in float32 beside 16-bit numbers raises none: the framework may make the result float32.
    """
    lacks = raises(violation) or (claim.name == WIDE_WEIGHTS and wrong_dtype(violation.finding) is not None)
    return replace(violation, lacks=(claim.name,)) if claim.name and lacks else violation


def raises(violation: Violation) -> bool:
    return violation.finding.kind == "raised"


def is_unknown_keyword(violation: Violation) -> bool:
    """Whether the subject raised what is raised for a keyword that it does not know, or does not support."""
    detail = violation.finding.detail
    return isinstance(detail, Raised) and detail.error in ("TypeError", "NotImplementedError")


# --- why there is no case for a question ------------------------------------------------------------------------------


DRAWN = 5
"""Cases from which is told what all of a probe's cases need."""


def missing_features(cases_of: Callable[[Declaration], list[Case]], declaration: Declaration) -> str:
    """What all cases need and the subject does not take; empty where that is not the same for all.

    cases_of: some cases of the question for a subject that takes what is declared.
    """
    features = set(FEATURES) - {"refusals"} - ({"structured", "logsumexp"} - declaration.features)
    wide = replace(declaration, features=frozenset(features), dtypes=SIMPLEST_FIRST, lacking=frozenset())
    lacks = [
        (features_of(case) - declaration.features) | ({case.dtype} - {*declaration.dtypes}) for case in cases_of(wide)
    ]
    common = set.intersection(*lacks) if lacks else set()
    common = {name for name in common if name not in FEATURES or not cases_of(wide.remove_features(name))}
    if common <= {"combined", "or"} and lacks and all(one & set(MASK_KINDS) for one in lacks):
        return "masks" if not declaration.masks else "these masks"
    dtypes = {name for one in lacks for name in one} - set(FEATURES)
    if common:
        return " and ".join(sorted(common, key=[*SIMPLEST_FIRST, *FEATURES].index))
    return " or ".join(sorted(dtypes)) if all(one & dtypes for one in lacks) else ""
