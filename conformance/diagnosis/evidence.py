"""Evidence: cases that a subject was asked, with its answers and what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import ARITHMETIC, LARGEST
from conformance.cases.arguments import gradient_name, is_gradient
from conformance.cases.case import Case
from conformance.cases.declaration import FORMULAS
from conformance.cases.expectations import Exact, Planted, replace_hidden
from conformance.cases.facts import operation_facts
from conformance.checks.catalogue import SPOILED_ROWS, TOWERING, Check, nothing
from conformance.checks.comparison import fill_unpromised, judge, no_others
from conformance.checks.findings import Finding
from conformance.checks.results import MOST_NUMBERS, WIDE, KeptCase, single_case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Mistake, Prediction
from conformance.runner.in_process import JudgeError, Runner
from conformance.subjects.subject import Answers, Subject

if TYPE_CHECKING:
    from conformance.cases.expectations import CaseExample

MOST = 40
"""Failing and passing cases that are asked again, of each. The sketch of this method told mistakes apart with fewer."""
NUMBERS = 2**19
"""Numbers of all of them together, failing or passing, at most."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A call with a subject's answers.

    wrong: results beyond their bounds. probe: what drew the case. kept: how it was asked. findings: of each result.
    free: by result, the elements of which the subject promises nothing, and that it has otherwise.
    """

    call: Call
    answers: Answers
    wrong: frozenset[str]
    probe: str = ""
    kept: KeptCase | None = None
    findings: tuple[Finding, ...] = ()
    free: Mapping[str, np.ndarray] = field(default_factory=dict)

    def predict(self, mistake: Mistake) -> list[Prediction]:
        """The predictions of a mistake for the case, which say nothing of free elements."""
        found = []
        for prediction in mistake.predict(self.call):
            bounds = dict(prediction.bounds)
            for name, free in self.free.items():
                if name in prediction.results and prediction.results[name].shape == free.shape:
                    bounds[name] = np.where(free, np.inf, bounds[name])
            found.append(prediction._replace(bounds=bounds))
        return found

    def right_under(self, rounding: Mapping[str, str]) -> tuple[dict[str, Exact], Results]:
        """The exact results and bounds of a subject that declares this of its formulas and its arithmetic."""
        if not {*FORMULAS} & rounding.keys():
            return self.call.exact, self.bounds_under(rounding)
        if self.kept is None or isinstance(self.kept.example, Case):
            call = Call(add_rounding(self.case, rounding))
            return call.exact, call.bounds
        *_, exact, bounds = self.kept.check.prepare(add_rounding(self.kept.example, rounding))
        return exact, bounds

    def bounds_under(self, rounding: Mapping[str, str]) -> Results:
        """The bounds of a subject that declares this rounding of its arithmetic."""
        if self.kept is None or isinstance(self.kept.example, Case):  # no other case's bounds
            return bound(add_rounding(self.case, rounding))
        *_, bounds = self.kept.check.prepare(add_rounding(self.kept.example, rounding))
        return bounds

    def allow_arithmetic(self) -> Evidence:
        """The same of a subject that computes with inputs of 16 bits in 16 bits.

        An error as large as the largest number of a result is none of rounding, as 0 would be as near; but gradients
        may have larger terms, which cancel. Where scores may overflow, nothing is promised. Where gradients may on
        their way, some may not be finite: no mask holds 0 times infinity back.
        """
        dtype = self.case.dtype
        if dtype in WIDE:
            return self
        with np.errstate(all="ignore"):
            under = alone = self.bounds_under({ARITHMETIC: dtype})
            if self.kept is not None and not isinstance(self.kept.example, Case):
                alone = bound(add_rounding(self.case, {ARITHMETIC: dtype}))
        scores, gradients = find_overflows(self.call)
        bounds, free, answers = {}, {}, dict(self.answers)
        for name, array in self.answers.items():
            if name not in self.call.right:  # the check compares it with nothing
                continue
            right, own = self.call.right[name], self.call.bounds[name]
            numbers = np.abs(right[np.isfinite(right)])
            most = np.nextafter(numbers.max(initial=0), 0)
            lost = np.fmax(under[name], alone.get(name, 0))
            bounds[name] = np.fmax(own, lost if is_gradient(name) else np.fmin(lost, most))
            infinite = gradients & is_gradient(name) & ~np.isfinite(array.astype(float))
            free[name] = self.free.get(name, False) | infinite | np.full(array.shape, scores)
            with np.errstate(all="ignore"):
                answers[name] = np.where(free[name], right, array).astype(array.dtype)
        weighed = weigh(Call.make(self.case, self.call.exact, bounds), answers, self.probe, self.kept)
        return self if weighed is None else replace(weighed, free=free)

    @property
    def case(self) -> Case:
        return self.call.case

    @cached_property
    def clean_call(self) -> Call | None:
        """The call without NaN and infinity that a mask hides; None where it hides none."""
        masked = self.case.special and operation_facts(self.case.operation).masked
        clean = replace_hidden(self.case) if masked else self.case
        return None if clean is self.case else Call(clean)

    @property
    def size(self) -> int:
        return sum(array.size for array in self.case.inputs.values())


def find_overflows(call: Call) -> tuple[bool, bool]:
    """Whether attention's scores may overflow in the inputs' dtype, and whether numbers on the way to gradients may."""
    largest = LARGEST.get(call.case.dtype)
    if call.case.operation != "attention" or largest is None:
        return False, False
    steps, scale = call.steps, abs(call.steps.scale)
    query, keys, values = (np.where(np.isfinite(a), np.abs(a), 0) for a in (steps.query, steps.keys, steps.values))
    scores = max(1.0, scale) * (query @ keys.swapaxes(-1, -2))
    if "output" not in call.case.cotangents:
        return bool(scores.max(initial=0) > largest), False
    weights_bar = np.abs(call.cotangent()) @ values.swapaxes(-1, -2)
    # The gradient of a row's scores is at most twice the largest of its weights.
    bar = 2 * weights_bar.max(initial=0) * max(1.0, scale)
    sums = bar * max(keys.sum(axis=-2).max(initial=0), query.sum(axis=-2).max(initial=0), 1.0)
    return bool(scores.max(initial=0) > largest), bool(sums > largest)


def add_rounding(example: CaseExample, rounding: Mapping[str, str]) -> Any:
    """The example, each of its cases with this rounding too."""
    if isinstance(example, Case):
        return replace(example, rounding=example.rounding | dict(rounding))
    if isinstance(example, Planted):
        clean, planted = (add_rounding(case, rounding) for case in (example.clean, example.planted))
        return replace(example, clean=clean, planted=planted)
    return tuple(add_rounding(part, rounding) for part in example) if isinstance(example, tuple) else example


@dataclass(frozen=True)
class Answered(Finding):
    """No finding: a subject's answers to one case."""

    answers: Answers = field(default_factory=dict)


def answer_case(subject: Subject, case: Case, shared: None) -> list[Finding]:
    return [Answered("answers", 0.0, answers=subject(case))]


ANSWERS_TO_CASE = Check("answers to a case", nothing, answer_case, tells_size=False)


def ask(runner: Runner, case: Case) -> Answers | None:
    """Return the subject's answers; None where it gives none."""
    try:
        found = runner.run_check(ANSWERS_TO_CASE, case, None)
    except JudgeError:
        return None
    return found[0].answers if found and isinstance(found[0], Answered) else None


def collect_evidence(runner: Runner, kept: Iterable[KeptCase], always: Iterable[KeptCase] = ()) -> list[Evidence]:
    """Ask the subject some of the kept cases once more, and all of `always`, the smallest first."""
    chosen = [one for one in always if one.size <= MOST_NUMBERS]
    own = {id(one.example) for one in chosen}
    others = [one for one in kept if one.check.compares_call and id(one.example) not in own]
    for failed in (True, False):
        found = [one for one in others if one.failed == failed]
        room = NUMBERS
        for one in sorted(found, key=order_by_turns(found))[:MOST]:
            room -= one.size
            chosen += [one] if room >= 0 else []
    asked = (ask_kept(runner, one) for one in chosen)
    return sorted((evidence for evidence in asked if evidence is not None), key=lambda evidence: evidence.size)


def order_by_turns(kept: Iterable[KeptCase]) -> Callable[[KeptCase], tuple[int, int]]:
    """Order the smallest case of each probe before the second of any."""
    place: dict[int, int] = {}
    count: dict[tuple[str, bool], int] = {}
    for one in sorted(kept, key=lambda one: one.size):
        count[one.probe, one.failed] = place[id(one)] = count.get((one.probe, one.failed), -1) + 1
    return lambda one: (place[id(one)], one.size)


def ask_kept(runner: Runner, kept: KeptCase) -> Evidence | None:
    """Weigh the answers to a case, asked again where they were not kept.

    None where the subject does not answer, or the check compares otherwise.
    """
    example, case = kept.example, single_case(kept.check, kept.example)
    answers = None if case is None else ask(runner, case) if kept.answers is None else kept.answers
    if case is None or answers is None:
        return None
    *_, exact, bounds = kept.check.prepare(example)
    if kept.check == TOWERING:  # whose other gradients are as large as the scale, and compared with nothing
        exact = {name: one for name, one in exact.items() if name in ("output", gradient_name("value"))}
        answers = {name: array for name, array in answers.items() if name in exact}
    if kept.check == SPOILED_ROWS:  # NaN and infinity are alike there, and what they need not reach may be anything
        _, _, reached, rows = example
        high, got = exact["output"].high, answers["output"]
        exact = {"output": exact["output"]._replace(high=np.where(reached, np.nan, high))}
        bounds = {"output": np.where(rows, np.inf, bounds["output"])}
        answers = {"output": np.where(reached & ~np.isfinite(got.astype(float)), np.nan, got).astype(got.dtype)}
    return weigh(Call.make(case, exact, bounds), answers, kept.probe, kept)


def ask_fresh(runner: Runner, case: Case) -> Evidence | None:
    """Ask a case that the run did not have; None where the subject does not answer."""
    answers = ask(runner, case)
    return None if answers is None else weigh(Call(case), answers)


def weigh(call: Call, answers: Answers, probe: str = "", kept: KeptCase | None = None) -> Evidence | None:
    """Compare answers with what is right; None where one is no array of the right shape and dtype."""
    findings = judge(call.case, answers, call.exact, call.bounds, no_others)
    if any(finding.kind != "value" for finding in findings):
        return None
    wrong = frozenset(finding.name for finding in findings if finding.ratio > 1)
    told = fill_unpromised(call.case, answers, call.exact)
    free = {
        name: np.asarray(
            (one != answers[name]) & ~(np.isnan(one.astype(float)) & np.isnan(answers[name].astype(float)))
        )
        for name, one in told.items()
        if one is not answers[name]
    }
    return Evidence(call, told, wrong, probe, kept, tuple(findings), free)
