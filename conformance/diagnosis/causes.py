"""From violations and evidence to causes: once, after a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import is_gradient
from conformance.cases.declaration import CONVENTIONS, Declaration
from conformance.checks.comparison import ratio, worst
from conformance.checks.findings import same_error
from conformance.checks.levels import rank
from conformance.checks.results import Results, Violation, keep_violation
from conformance.diagnosis.cause import Cause, CauseKind, Diagnosis, cause_kind
from conformance.diagnosis.choice import Chooser
from conformance.diagnosis.evidence import Evidence, ask_fresh, collect_evidence
from conformance.diagnosis.experiments import draw_experiments
from conformance.diagnosis.explanation import Explanation, judge_mistake, learn_condition
from conformance.diagnosis.pattern import find_pattern
from conformance.mistakes.catalogue import mistakes_of
from conformance.operations.probes import catalogue
from conformance.runner.in_process import Runner
from conformance.runner.memory_layouts import depends_on_layout
from conformance.sampling.strategies import roundings

PRECISIONS = ("weights", "products", "shared_heads", "normalized", "saved", "merging", "angles", "rotation")
"""Conventions that say in which precision something is computed."""


def find_causes(results: Results, runner: Runner) -> list[Cause]:
    """Return the causes of all violations, those of the lowest level first."""
    violations = [violation for (_, subject), violation in results.violations.items() if subject == runner.name]
    if not violations:
        return []
    numeric = {id(one): one for one in violations if is_numeric(one)}
    found = [*group_others([one for one in violations if id(one) not in numeric])]
    memory = [one for one in numeric.values() if depends_on_layout(runner, one.check, one.example, one.level)]
    if memory:
        found.append(Cause("memory", sort_violations(memory)))
    asked = {id(one): keep_violation(one) for one in numeric.values() if one not in memory}
    evidence = collect_evidence(runner, [*results.kept[runner.name]], asked.values())
    own = {key: one for key, kept in asked.items() for one in evidence if one.kept is kept}
    found += explain_numbers(runner, evidence, {key: numeric[key] for key in asked}, own)
    return sorted(found, key=lambda cause: (rank(cause.level), cause.kind != "mistake", -len(cause.violations)))


def is_numeric(violation: Violation) -> bool:
    """Whether numbers are wrong, in an answer to one call."""
    return violation.finding.kind == "value" and not violation.depends_on_state and violation.case is not None


def explain_numbers(
    runner: Runner, evidence: Sequence[Evidence], violations: dict[int, Violation], own: dict[int, Evidence]
) -> Iterator[Cause]:
    """Causes of wrong numbers. own: the evidence that is a violation's own case, where it could be asked again."""
    failing = [one for one in evidence if one.wrong]
    passing = [one for one in evidence if not one.wrong]
    mistakes = mistakes_of(runner_operation(violations))
    probes = {probe.id: probe for probe in catalogue(runner.declaration)}
    chooser = Chooser(
        failing,
        passing,
        mistakes,
        partial(draw_experiments, declaration=runner.declaration, probes=probes),
        partial(ask_fresh, runner),
        [one for key, one in own.items() if key in violations] or None,
    )
    left = dict(violations)
    chosen = chooser.choose() if failing else []
    for explanation in chosen:
        explained = {id(one) for one in explanation.explained}
        rules = {one.kept.rule for one in explanation.explained if one.kept is not None}
        follow = [
            left.pop(key) for key in [*left] if (id(own[key]) in explained if key in own else left[key].rule in rules)
        ]
        if not follow and len(explanation.explained) > 1:  # behind rules whose own violation has another cause
            follow = make_violation(explanation.explained, runner.name)
        if follow:
            yield explain_by_mistake(chooser, explanation, follow)
    if left:
        yield from group_numbers(left, own, chooser.passing)


def runner_operation(violations: dict[int, Violation]) -> str:
    return next((one.case.operation for one in violations.values()), "")


def explain_by_mistake(chooser: Chooser, explanation: Explanation, violations: Sequence[Violation]) -> Cause:
    mistake = explanation.mistake
    silent = sum(judge_mistake(mistake, one) == "silent" for one in chooser.passing)
    diagnosis = Diagnosis(
        mistake, len(explanation.explained), len(chooser.failing), silent, tuple(explanation.alternatives)
    )
    smallest = min(explanation.explained, key=lambda one: one.size)
    ordered = sort_violations(violations, first=lambda one: one.rule != mistake.rule)
    return Cause(
        "mistake",
        ordered,
        diagnosis,
        mistake.condition,
        find_pattern(smallest),
        find_conventions(explanation.explained),
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
    violations: dict[int, Violation], own: dict[int, Evidence], passing: Sequence[Evidence]
) -> Iterator[Cause]:
    """One cause for violations that are alike: lost digits in one dtype, wrong outputs, or wrong gradients alone."""
    groups: dict[Any, list[int]] = {}
    for key, violation in violations.items():
        groups.setdefault(kind_of_numbers(violation, own.get(key)), []).append(key)
    for (kind, *_), keys in groups.items():
        evidence = [own[key] for key in keys if key in own and own[key].wrong]
        smallest = min(evidence, key=lambda one: one.size, default=None)
        wrong = frozenset[str]().union(*(one.wrong for one in evidence))
        others = [one for one in passing if not one.case.special and not wrong.isdisjoint(one.answers)]
        condition = learn_condition(evidence, others) if evidence else None
        pattern = None if smallest is None else find_pattern(smallest)
        conventions = find_conventions(evidence)
        yield Cause(kind, sort_violations([violations[key] for key in keys]), None, condition, pattern, conventions)


def kind_of_numbers(violation: Violation, evidence: Evidence | None) -> tuple[CauseKind, Any, Any]:
    if violation.loses_digits:
        return "digits", violation.case.dtype, None
    gradient = is_gradient(violation.finding.name)
    return "numbers", gradient, violation.is_numeric


def find_conventions(evidence: Sequence[Evidence]) -> dict[str, str]:
    """The conventions of precision, as few as may be, under which all the cases conform; empty where none do.

    Of the values of a convention those that excuse least come first, and one convention before two.
    """
    if not evidence or any(one.case.special for one in evidence):
        return {}
    choices = [(name, value) for name in PRECISIONS for value in CONVENTIONS[name][1:]]
    declared = [dict([one]) for one in choices]
    declared += [dict(pair) for pair in product(choices, choices) if pair[0][0] < pair[1][0]]
    for conventions in declared:
        if all(conforms_under(conventions, one) for one in evidence):
            return conventions
    return {}


def conforms_under(conventions: dict[str, str], evidence: Evidence) -> bool:
    """Whether the answers to a case are within the bounds of a subject that declares these conventions."""
    case = evidence.case
    rounding = roundings(Declaration().promising(**conventions), case.dtype)
    if not rounding or rounding == case.rounding:
        return False
    with np.errstate(all="ignore"):
        bounds = bound(replace(case, rounding=case.rounding | rounding))
        return all(
            bool((ratio(evidence.answers[name].astype(float), evidence.call.exact[name], bounds[name],
                        str(evidence.answers[name].dtype)) <= 1).all())
            for name in evidence.wrong
        )  # fmt: skip


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
