"""From violations and evidence to causes: once, after a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from conformance.bounds.arithmetic import FORMATS
from conformance.cases.arguments import is_gradient
from conformance.cases.case import Case
from conformance.cases.declaration import CONVENTIONS, FORMULAS, OPEN_AT_INFINITY, PRECISIONS, Declaration, roundings
from conformance.cases.facts import operation_facts
from conformance.checks.comparison import breaks, fill_unpromised, judge, ratio, worst
from conformance.checks.findings import same_error
from conformance.checks.levels import ISOLATION_RULE, NO_ISOLATION, STATE_RULE, STRICT, rank
from conformance.checks.results import WIDE, Results, Violation, keep_violation
from conformance.diagnosis.cause import Cause, CauseKind, Diagnosis, cause_kind
from conformance.diagnosis.choice import Chooser
from conformance.diagnosis.evidence import Evidence, add_rounding, ask_fresh, collect_evidence
from conformance.diagnosis.experiments import draw_experiments
from conformance.diagnosis.explanation import Explanation, judge_mistake, learn_condition
from conformance.diagnosis.pattern import find_pattern, same_places
from conformance.mistakes.catalogue import mistakes_of
from conformance.mistakes.condition import Condition
from conformance.operations.probes import catalogue
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import depends_on_layout


def find_causes(results: Results, runner: Runner) -> list[Cause]:
    """Return the causes of all violations, those of the lowest level first."""
    violations = [violation for violation in results.violations.values() if violation.subject == runner.name]
    if not violations:
        return []
    numeric = {id(one): one for one in violations if has_wrong_numbers(one)}
    found = [*group_others([one for one in violations if id(one) not in numeric])]
    of_state = [one for one in numeric.values() if one.rule == STATE_RULE]
    memory = [one for one in of_state if depends_on_layout(runner, one.check, one.example, one.level)]
    if memory:
        found.append(Cause("memory", sort_violations(memory)))
    kept = [*results.kept[runner.name]]
    answers = {id(one.example): one.answers for one in kept}
    numbers = [one for one in numeric.values() if one not in memory]
    asked = {id(one): replace(keep_violation(one), answers=answers.get(id(one.example))) for one in numbers}
    if asked:
        evidence = collect_evidence(runner, kept, asked.values())
        own = {key: one for key, kept in asked.items() for one in evidence if one.kept is kept}
        found += explain_numbers(runner, evidence, {key: numeric[key] for key in asked}, own)
    found = [*map(excuse_isolation, found)]
    return sorted(found, key=lambda cause: (rank(cause.level), cause.kind != "mistake", -len(cause.violations)))


def excuse_isolation(cause: Cause) -> Cause:
    """The cause with the convention by which nothing behind a mask is promised, if that is all that it breaks."""
    if cause.rules != (ISOLATION_RULE,) or not cause.lead.finding.is_of_values:
        return cause
    may_be_meant = NO_ISOLATION.keys() <= {*operation_facts(cause.lead.case.operation).conventions}
    return replace(cause, excuses=(NO_ISOLATION,)) if may_be_meant else cause


def has_wrong_numbers(violation: Violation) -> bool:
    """Whether numbers are wrong, in an answer to one call."""
    return violation.finding.is_of_values and not violation.depends_on_state and violation.case is not None


def explain_numbers(
    runner: Runner, evidence: Sequence[Evidence], violations: dict[int, Violation], own: dict[int, Evidence]
) -> Iterator[Cause]:
    """Causes of wrong numbers. own: the evidence that is a violation's own case, where it could be asked again."""
    unasked = {one.rule for key, one in violations.items() if key not in own}
    due = [one for key, one in own.items() if key in violations]
    due += [one for one in evidence if one.wrong and one.kept is not None and one.kept.rule in unasked]
    operation = next((one.case.operation for one in evidence), "")
    probes = {probe.id: probe for probe in catalogue(runner.declaration, operation)} if operation else {}
    chooser = Chooser(
        [one for one in evidence if one.wrong],
        [one for one in evidence if not one.wrong],
        mistakes_of(operation),
        partial(draw_experiments, declaration=runner.declaration, probes=probes),
        partial(ask_fresh, runner),
        due,
    )
    left = dict(violations)
    chosen = chooser.choose()
    beside = choose_beside_arithmetic(chooser, chosen, evidence)
    if beside is not None:
        chooser, chosen, rounded = beside
        inexact = [one for one in evidence if one.wrong and not rounded[id(one)].wrong]
        follow = take_violations(left, own, inexact)
        own = {key: rounded[id(one)] for key, one in own.items()}
        if follow:
            excuses = find_excuses(inexact)
            condition = Condition(dtypes=tuple(sorted({one.case.dtype for one in inexact})))
            kind: CauseKind = "digits" if excuses else "arithmetic"
            yield Cause(kind, sort_violations(follow), None, condition, find_pattern(inexact[0]), excuses)
    for explanation in chosen:
        follow = take_violations(left, own, explanation.explained)
        if not follow and len(explanation.explained) > 1:  # behind rules whose own violation has another cause
            follow = make_violation(explanation.explained, runner.name)
        if follow:
            yield explain_by_mistake(chooser, explanation, follow)
    if left:
        known = {id(one) for explanation in chosen for one in explanation.explained}
        unexplained = [one for one in chooser.failing if id(one) not in known]
        yield from group_numbers(left, own, unexplained, chooser.passing)


def choose_beside_arithmetic(
    chooser: Chooser, chosen: Sequence[Explanation], evidence: Sequence[Evidence]
) -> tuple[Chooser, list[Explanation], dict[int, Evidence]] | None:
    """Choose mistakes as if inputs of 16 bits were computed with in 16 bits; None where that explains no more.

    A mistake of 16 bits that explains most failing cases is not given up for arithmetic, whose bounds are wide. What is
    wrong in float32 too is none of it.

    Returns:
        The search, its explanations, and by the identity of the evidence what that arithmetic leaves of it.
    """
    narrow = [one for one in chosen if not any(case.case.dtype in WIDE for case in one.explained)]
    if not chooser.missed or 2 * sum(len(one.explained) for one in narrow) >= len(chooser.failing):
        return None
    rounded = {id(one): one.allow_arithmetic() for one in evidence if one.wrong}
    if all(one.wrong for one in rounded.values()):
        return None
    rounded |= {id(one): one.allow_arithmetic() for one in evidence if not one.wrong}

    def ask(case: Case) -> Evidence | None:
        found = chooser.ask_fresh(case)
        return None if found is None else found.allow_arithmetic()

    again = Chooser(
        [one for one in rounded.values() if one.wrong],
        [one for one in rounded.values() if not one.wrong],
        chooser.mistakes,
        chooser.draw,
        ask,
        [one for key, one in rounded.items() if key in chooser.due],
        chooser.screened,
    )
    explanations = again.choose()
    wide = [one for one in again.uncovered if one.case.dtype in WIDE and not one.case.special]
    return None if again.missed or wide else (again, explanations, rounded)


def take_violations(
    left: dict[int, Violation], own: Mapping[int, Evidence], explained: Sequence[Evidence]
) -> list[Violation]:
    """Take those of which the own case is explained; of those that have none, those of a rule that is."""
    cases = {id(one) for one in explained}
    rules = {one.kept.rule for one in explained if one.kept is not None}
    return [left.pop(key) for key in [*left] if (id(own[key]) in cases if key in own else left[key].rule in rules)]


def explain_by_mistake(chooser: Chooser, explanation: Explanation, violations: Sequence[Violation]) -> Cause:
    mistake = explanation.mistake
    silent = sum(judge_mistake(mistake, one) == "silent" for one in chooser.passing)
    diagnosis = Diagnosis(
        mistake, len(explanation.explained), len(chooser.failing), silent, tuple(explanation.alternatives)
    )
    smallest = min(explanation.explained, key=lambda one: one.size)
    ordered = sort_violations(violations, first=lambda one: one.rule != mistake.rule)
    # In float32 the bounds of narrow formats are wide enough to excuse a few results of any mistake.
    dtypes = {one.case.dtype for one in explanation.explained}
    narrow = mistake.rounds != "" or dtypes.isdisjoint(WIDE)
    excuses = find_excuses(explanation.explained, narrow=narrow, first=mistake.rounds)
    # What else fails of these rules, in these dtypes, must conform under a convention, too.
    rules = {one.rule for one in violations}
    alike = [one for one in chooser.failing if one.case.dtype in dtypes and one.kept and one.kept.rule in rules]
    return Cause(
        "mistake",
        ordered,
        diagnosis,
        mistake.condition,
        find_pattern(smallest),
        tuple(one for one in excuses if largest_error(one, alike) <= 1),
        (mistake.lacks,) if mistake.lacks else (),
    )


def make_violation(explained: Sequence[Evidence], subject: str) -> list[Violation]:
    """The violation that the smallest of the run's own cases shows; none where only experiments do."""
    smallest = min((one for one in explained if one.kept is not None), key=lambda one: one.size, default=None)
    if smallest is None or smallest.kept is None:
        return []
    kept, finding = smallest.kept, worst(smallest.findings)
    return [
        Violation(kept.rule, subject, finding, kept.title, kept.check, kept.example, least=kept.least, probe=kept.probe)
    ]


def sort_violations(
    violations: Sequence[Violation], first: Callable[[Violation], bool] = lambda one: False
) -> tuple[Violation, ...]:
    """The lowest level first, then those for which `first` is False, then the smallest cases."""

    def order(violation: Violation) -> tuple[Any, ...]:
        inputs = {} if violation.case is None else violation.case.inputs
        return rank(violation.level), first(violation), sum(array.size for array in inputs.values())

    return tuple(sorted(violations, key=order))


# --- without a known mistake ------------------------------------------------------------------------------------------


def group_numbers(
    violations: dict[int, Violation],
    own: dict[int, Evidence],
    unexplained: Sequence[Evidence],
    passing: Sequence[Evidence],
) -> Iterator[Cause]:
    """One cause for violations that are alike: lost digits, wrong outputs, or wrong gradients alone.

    Digits that are lost in another dtype are another cause. It is the same one in float16 as in bfloat16 where they are
    lost at the same places, at one level, and under the same conventions.
    """
    groups: dict[tuple[CauseKind, str | None, bool | None, bool], list[int]] = {}
    for key, one in violations.items():
        if one.loses_digits:
            groups.setdefault(("digits", one.case.dtype, None, True), []).append(key)
        else:
            groups.setdefault(("numbers", None, is_gradient(one.finding.name), one.is_numeric), []).append(key)

    def make_cause(kind: CauseKind, dtypes: Collection[str | None], gradient: bool | None, keys: list[int]) -> Cause:
        rules = {violations[key].rule for key in keys}
        evidence = [own[key] for key in keys if key in own and own[key].wrong]
        evidence += [
            one
            for one in unexplained
            if one not in evidence and one.kept is not None and one.kept.rule in rules
            if not {None, one.case.dtype}.isdisjoint(dtypes) and gradient in (None, all(map(is_gradient, one.wrong)))
        ]
        smallest = min(evidence, key=lambda one: one.size, default=None)
        wrong = frozenset[str]().union(*(one.wrong for one in evidence))
        others = [one for one in passing if not one.case.special and not wrong.isdisjoint(one.answers)]
        condition = learn_condition(evidence, others) if evidence else None
        pattern = None if smallest is None else find_pattern(smallest)
        ordered = sort_violations([violations[key] for key in keys])
        excuses = find_excuses(evidence, ordered[0].level)
        return Cause(kind, ordered, None, condition, pattern, excuses)

    narrow: list[tuple[list[str | None], list[int], Cause]] = []
    for (kind, dtype, gradient, _), keys in groups.items():
        cause = make_cause(kind, [dtype], gradient, keys)
        if kind != "digits" or dtype in WIDE:
            yield cause
            continue
        for place, (dtypes, before, known) in enumerate(narrow):
            if known.level == cause.level and same_places(known.pattern, cause.pattern):
                merged = make_cause(kind, [*dtypes, dtype], gradient, [*before, *keys])
                if known.excuses == cause.excuses == merged.excuses:
                    narrow[place] = [*dtypes, dtype], [*before, *keys], merged
                    break
        else:
            narrow.append(([dtype], keys, cause))
    yield from (cause for *_, cause in narrow)


def find_excuses(
    evidence: Sequence[Evidence], level: str = STRICT, narrow: bool = True, first: str = ""
) -> tuple[Mapping[str, str], ...]:
    """The conventions, as few as may be, under which all the cases conform; empty where none do, or too many.

    Those come first that excuse least: of formats as wide as the inputs', then those under which the errors are the
    largest part of their bounds. level: of NaN and infinity, those cases count that break what it asks for. narrow:
    whether those of formats with fewer digits count. first: the convention that a known mistake speaks of.
    """
    own = operation_facts(evidence[0].case.operation).conventions if evidence else ()
    names = tuple(name for name in (*FORMULAS, *PRECISIONS) if name in own)
    if any(one.case.special for one in evidence):
        names = tuple(name for name in names if name in (*FORMULAS, *OPEN_AT_INFINITY))
        evidence = [
            one for one in evidence if breaks(judge(one.case, one.answers, one.call.exact, one.call.bounds), level)
        ]
    if not evidence:
        return ()
    # What a float64 case loses to 16 bits, it would lose to float32 as well, for which there is no convention.
    left_out = () if narrow and all(one.case.dtype != "float64" for one in evidence) else FORMATS
    choices = [(name, value) for name in names for value in CONVENTIONS[name][1:] if value not in left_out]
    pairs = [pair for pair in combinations(choices, 2) if pair[0][0] != pair[1][0]]
    wide = any(one.case.dtype in WIDE for one in evidence)
    for several in ([(one,) for one in choices], pairs):
        errors = {chosen: largest_error(dict(chosen), evidence) for chosen in several}
        order = {
            chosen: (first not in dict(chosen), wide and any(value in FORMATS for _, value in chosen), -error)
            for chosen, error in errors.items()
            if error <= 1
        }
        if order:
            return tuple(map(dict, sorted(order, key=order.__getitem__)))
    formulas = [{}, *(dict([choice]) for choice in choices if choice[0] in FORMULAS)]
    return tuple(filter(None, (keep_needed(formula, names, evidence) for formula in formulas)))


MOST_TOGETHER = 3
"""Conventions that are offered at once; more of them would excuse most of what is nearly right."""


def keep_needed(formula: Mapping[str, str], names: Sequence[str], evidence: Sequence[Evidence]) -> dict[str, str]:
    """A formula's convention with those of arithmetic that are needed beside it, so that all the cases conform.

    At first all of arithmetic are there, and then one after the other goes that is not needed: the bound of more of
    them is never narrower. Empty where all together do not suffice, or where too many are needed.
    """

    def widest(name: str) -> str:
        return "inputs" if "inputs" in CONVENTIONS[name] else CONVENTIONS[name][-1]

    kept = dict(formula) | {name: widest(name) for name in names if name in PRECISIONS}
    if largest_error(kept, evidence) > 1:
        return {}
    for name in [name for name in kept if name not in formula]:
        fewer = {other: value for other, value in kept.items() if other != name}
        kept = fewer if largest_error(fewer, evidence) <= 1 else kept
    return kept if len(kept) <= MOST_TOGETHER else {}


def largest_error(conventions: Mapping[str, str], evidence: Sequence[Evidence]) -> float:
    """In bounds of a subject that declares these conventions; infinity from the first case on that does not conform.

    Infinite bounds allow any number, so a wrong one within them is no sign of a convention. It is infinity, too, where
    there is no other sign.
    """
    largest, shown = 0.0, False
    for one in evidence:
        rounding = roundings(Declaration().add_conventions(**conventions), one.case.dtype)
        if not rounding or rounding == one.case.rounding:
            return math.inf
        with np.errstate(all="ignore"):
            exact, bounds = one.right_under(rounding)
            answers = fill_unpromised(add_rounding(one.case, rounding), one.answers, exact)
            for name in one.wrong if exact is one.call.exact else exact.keys() & answers.keys():
                got = answers[name]
                allowed, right = bounds[name], np.abs(exact[name].high)
                # What the convention promises nothing of is filled in, and no longer wrong.
                off, left = (
                    ratio(array.astype(float), one.call.exact[name], one.call.bounds[name], str(got.dtype)) > 1
                    for array in (one.answers[name], got)
                )
                shown |= bool((off & (np.isfinite(allowed) | ~left)).any())
                if one.case.dtype not in WIDE and not is_gradient(name):  # no rounding is as large as all results
                    allowed = np.fmin(allowed, right.max(initial=0, where=np.isfinite(right)))
                error = ratio(got.astype(float), exact[name], allowed, str(got.dtype)).max(initial=0)
                if not error <= 1:
                    return math.inf
                largest = max(largest, float(error))
    return largest if shown else math.inf


def group_others(violations: Sequence[Violation]) -> Iterator[Cause]:
    """Causes of violations without numbers: one for each error, state, and each call that should be refused."""
    groups: list[tuple[CauseKind, list[Violation]]] = []
    for violation in violations:
        kind = cause_kind(violation)
        alike = (some for other, some in groups if other == kind and are_alike(kind, some[0], violation))
        several = next(alike, None)
        if several is None:
            groups.append((kind, [violation]))
        else:
            several.append(violation)
    for kind, several in groups:
        lacks = tuple(dict.fromkeys(name for one in several for name in one.lacks))
        yield Cause(kind, sort_violations(several), lacks=lacks)


def are_alike(kind: CauseKind, one: Violation, other: Violation) -> bool:
    """Whether two violations of a kind have one cause: the same state, rule of refusals, error, or wrong dtype."""
    if kind == "state":
        return True
    if kind == "refusal":
        return one.rule == other.rule
    if one.finding.kind == "raised":
        return same_error(one.finding, other.finding)
    return one.finding.detail == other.finding.detail
