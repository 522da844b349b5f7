"""Which violations stand for themselves, and which follow from something more basic.

A bug that is in every call breaks rules about masks, softcap and gradients too. Such a violation is known by its
smallest case, from which all that its rule is about has been cut away, or by the mistake that another shows as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.cases.arguments import gradient_name, results_of
from conformance.cases.case import Case
from conformance.cases.declaration import FEATURES, MASK_KINDS
from conformance.cases.expectations import empty_rows
from conformance.cases.facts import operation_facts
from conformance.cases.facts.attention import FEATURE_RULES
from conformance.cases.features import features_of, rule_of
from conformance.checks.catalogue import NOTHING, PLANTED, REFUSAL, UNSUPPORTED
from conformance.checks.comparison import OF_QUERIES, OF_ROWS, RAISED, Finding, same_error, wrong_dtype
from conformance.checks.levels import rank, within
from conformance.checks.results import ALSO_WITHOUT, LOOK_BEYOND, Violation
from conformance.diagnosis.memory import STRIDES
from conformance.diagnosis.naming import causes
from conformance.diagnosis.precision import AT_MOST

WIDER = ("ATT-1", "ATT-5", "ATT-6", "ATT-8", "ATT-9")
"""Rules that speak of more than their features: the default scale, softmax, empty rows, every shape, every dtype."""
MASKED = frozenset({*MASK_KINDS, "bias"})
"""Features that forbid pairs."""
OF_MASKS = dict.fromkeys(("MASK-1", "MASK-5", "MASK-6", "MASK-7", "ATT-4"), MASKED)
"""Rules of what forbids pairs, whatever does it."""
ALIKE = (*WIDER, *(rule for rule in OF_MASKS if rule != "ATT-4"))
"""Rules of which calls are like those of other rules; those of ATT-4 have numbers of their own."""
OF_COMBINATIONS = "MASK-6"
"""The rule of several things that forbid pairs at once."""
OF_HIDDEN = ("MASK-1", "MASK-7", OF_COMBINATIONS)
"""Rules of which a bias shows nothing that forbids no pair."""
OF_MANY = ("offset",)
"""Features that masks of several rules have."""
OF_SIZES = frozenset({"cross", "value_width"})
"""Features that say no more than that two sizes differ."""
SPEAKS_OF = {
    "ATT-5": re.compile(r"^(?!.*exponentials (?:overflow|of\b.* 0)).*(?:softmax|denominator|maximum|rescal)"),
    "ATT-1": re.compile(r"^the scale is"),
    "MASK-3": re.compile(r"^every call is causal"),
    "ATT-9": re.compile(r"rounded to|in b?float16|in TF32"),
}
"""By rules of every call of attention, the names of mistakes in the forward pass that they speak of.

Exponentials out of range may show in calls of any rule, and not in those of softmax, whose scores are near 0.
"""
REFUSED = (REFUSAL, UNSUPPORTED)
"""Checks of calls that should be refused."""
ASKED_BEYOND = (*REFUSED, NOTHING)
"""Checks by which nothing is found but what they ask for."""
OF_EMPTY_ROWS = "ATT-6"
"""The rule of rows that allow nothing: what is wrong in such a row follows from it."""
OF_CALLS = "ATT-13"
"""The rule of how it is called: from what breaks it no wrong numbers follow."""


def about(rule: str, operation: str) -> frozenset[str]:
    """Features of which a case must have one for the rule to speak of it; empty for rules of every case."""
    named = {feature for feature in FEATURES if rule_of(feature, operation) == rule and feature not in OF_MANY}
    rules = operation_facts(operation).rules
    if rules is not FEATURE_RULES:
        return frozenset(named & rules.keys())
    return frozenset() if rule in WIDER else OF_MASKS.get(rule, frozenset(named))


def used(violation: Violation) -> set[str]:
    """Features of its smallest case; without gradients, where it is the output that is wrong."""
    if violation.case is None or violation.check == REFUSAL:
        return set()
    beside = violation.finding.name in results_of(violation.case)
    return features_of(violation.case) - ({"gradients"} if beside else set())


def shows_its_rule(violation: Violation) -> bool:
    """Whether its smallest case has what its rule is about."""
    if violation.rule == "CALL" or violation.case is None or violation.check in ASKED_BEYOND:
        return True
    if violation.rule == OF_CALLS and violation.case.memory and not violation.finding.message:
        return STRIDES in violation.diagnosis
    if violation.check == PLANTED and violation.loses_digits:  # NaN and infinity have no part in that
        return False
    if violation.rule == "ATT-6" and violation.case.operation.startswith("attention"):
        return bool(empty_rows(violation.case).any())
    needed = about(violation.rule, violation.case.operation)
    shown = needed & (forbidding(violation) if violation.rule in OF_HIDDEN else used(violation))
    if violation.rule == OF_COMBINATIONS:
        return len(shown) > 1 or "combined" in used(violation)
    return bool(shown) if needed else not of_plain_gradient(violation)


def forbidding(violation: Violation) -> set[str]:
    """Features of its smallest case that forbid pairs; a bias does where it has -inf."""
    bias = violation.case.inputs.get("bias")
    hides = bias is not None and np.isneginf(bias.astype(float)).any()
    return used(violation) - (set() if hides else {"bias"})


def of_plain_gradient(violation: Violation) -> bool:
    """Whether a gradient is wrong in a case with nothing but gradients, and the rule is one of results alone."""
    operation, rules = violation.case.operation, operation_facts(violation.case.operation).rules
    own = {rule_of("gradients", operation), *(rules[name] for name in ("dtype", "cross") if name in rules)}
    own |= {rules[""]} if rules is FEATURE_RULES else set()  # the rule of every dtype
    plain = used(violation) - OF_SIZES == {"gradients"} and not violation.case.special  # NaN has rules of its own
    return plain and violation.finding.name.startswith(gradient_name("")) and violation.rule not in own


def rule_named(violation: Violation) -> str:
    """The rule of every call that its known mistake is one of; empty where none is known."""
    forward = violation.case is not None and violation.case.operation.startswith("attention")
    names = [name for name in in_order(violation) if not re.search(r"\bbackward\b|\bgradient\b", name)]
    return next((rule for name in names[:1] for rule, told in SPEAKS_OF.items() if forward and told.search(name)), "")


def simplest_first(violations: Sequence[Violation]) -> list[Violation]:
    """The lowest level; then the plain call; what depends on earlier calls; wrong results before rounded ones.

    What is wrong in rows that allow nothing comes after the rule of such rows. Then by the smallest case: of that count
    the features, and then the sizes; a rule of gradients comes before rules of results alone. What must be refused
    comes last of its level. Of the rules that one case shows, the first is one that speaks of its features, or of its
    known mistake.
    """

    def complexity(violation: Violation) -> tuple[int | bool, ...]:
        inputs = {} if violation.case is None else violation.case.inputs
        beyond, size = violation.check in REFUSED, sum(a.size for a in inputs.values())
        general = violation.case is None or not about(violation.rule, violation.case.operation)
        first = rank(violation.level), violation.rule != "CALL", not violation.of_state
        of_another = violation.rule != OF_EMPTY_ROWS and in_empty_rows(violation)
        gradient = violation.case is not None and of_plain_gradient(violation)
        elsewhere = rule_named(violation) not in ("", violation.rule)
        plain = len(used(violation)), gradient, elsewhere, size, general
        fails = violation.rule == OF_CALLS and violation.finding.message.startswith(RAISED)
        return *first, of_another, beyond, fails, violation.loses_digits, *plain

    return sorted(violations, key=complexity)


def separated(violations: Sequence[Violation]) -> tuple[list[Violation], list[Violation]]:
    """(those that stand for themselves, those that follow from them), both from the simplest.

    One follows where another is found on a call with no feature that its own smallest case lacks, and either its case
    has nothing of what its rule is about, or both show the same mistake. If both is so, the other one's case may have
    features that are only differences of sizes. One follows as well where one known mistake explains both, another
    call raised the same error in the same line, or another result has the same wrong dtype and nothing else.
    """
    ordered = simplest_first(violations)
    alone = [violation for violation in ordered if shows_its_rule(violation)]
    for violation in (violation for violation in ordered if not shows_its_rule(violation)):
        if not any(explains(other, violation) or shows_the_same(other, violation) for other in alone):
            alone.append(violation)
    alone = simplest_first(alone)
    firsts: list[Violation] = []
    for violation in alone:
        if not any(stands_for(other, violation) for other in firsts):
            firsts.append(violation)
    return firsts, [violation for violation in ordered if all(violation is not first for first in firsts)]


def stands_for(other: Violation, violation: Violation) -> bool:
    """Whether the other one is told in place of a violation whose case shows its own rule.

    A call that should be refused is refused by no repair of what others show.
    """
    if violation.check in REFUSED and other.check not in REFUSED:
        return False
    if same_error(other.finding, violation.finding):
        return within(other.level, violation.level)
    if other.rule == OF_EMPTY_ROWS and in_empty_rows(other) and in_empty_rows(violation):
        return within(other.level, violation.level)
    if wrong_dtype(other.finding) is not None and wrong_dtype(other.finding) == wrong_dtype(violation.finding):
        return within(other.level, violation.level)
    if explains(other, violation):
        alike = (same_mistake, same_threshold, both_without_a_name)
        return also_without(violation) or any(found(other, violation) for found in alike)
    return within(other.level, violation.level) and bool(definite(other) & definite(violation))


def in_empty_rows(violation: Violation) -> bool:
    """Whether the wrong number stands in a row that allows nothing."""
    case = violation.case
    return case is not None and not case.special and in_empty_row(case, violation.finding)


def in_empty_row(case: Case, finding: Finding) -> bool:
    """Whether the element that is farthest off stands in a row of attention that allows nothing."""
    if case.operation not in OF_QUERIES or finding.name not in OF_ROWS or finding.message:
        return False
    return bool(empty_rows(case)[finding.index[:3]])


def definite(violation: Violation) -> set[str]:
    """The known mistakes that explain it, without those that only may."""
    return set(in_order(violation))


def in_order(violation: Violation) -> list[str]:
    """The same, the likeliest first."""
    names = (name for name in violation.mistakes if not name.startswith(AT_MOST))
    return list(dict.fromkeys(cause for name in names for cause in sorted(causes([name]))))


def same_threshold(other: Violation, violation: Violation) -> bool:
    """Whether both are first wrong at one size, and no known mistake explains the one that may follow."""
    if violation.mistakes or not other.threshold or not violation.threshold:
        return False
    return other.threshold[0].begins_as(violation.threshold[0])


def is_plain(violation: Violation) -> bool:
    """Whether its smallest case has no mask, no option and only numbers, and its output is wrong."""
    return not used(violation) - OF_SIZES and not violation.case.special


def also_without(violation: Violation) -> bool:
    """Whether its case fails without what its rule is about, too, and no known mistake explains it."""
    return any(line.startswith(LOOK_BEYOND) and line.endswith(ALSO_WITHOUT) for line in violation.diagnosis)


def both_without_a_name(other: Violation, violation: Violation) -> bool:
    """Whether both are wrong on calls with the same features, the second on no larger one, and neither has a known
    mistake: then nothing tells them apart."""
    ours, theirs = other.case, violation.case
    if ours is None or theirs is None or other.loses_digits or violation.loses_digits:
        return False
    if violation.rule not in ALIKE or used(other) - OF_SIZES != used(violation) - OF_SIZES:
        return False
    if any(one.case.special or definite(one) for one in (other, violation)):
        return False
    if in_empty_rows(violation) and not in_empty_rows(other):
        return False
    if other.finding.message or other.wrong_gradients != violation.wrong_gradients or ours.dtype != theirs.dtype:
        return False
    if ours.inputs.keys() != theirs.inputs.keys() or theirs.memory:
        return False
    return all(
        size <= least
        for name, array in theirs.inputs.items()
        for size, least in zip(array.shape, ours.inputs[name].shape, strict=False)
    )


def shows_the_same(other: Violation, violation: Violation) -> bool:
    """Whether a known mistake explains both, on calls whose features differ in sizes alone."""
    named = causes(other.mistakes) & causes(violation.mistakes)
    return bool(named) and same_mistake(other, violation) and used(other) - OF_SIZES <= used(violation)


def explains(other: Violation, violation: Violation) -> bool:
    """Whether a violation may follow from another one."""
    if other.case is None or other.rule == OF_CALLS or other.check in ASKED_BEYOND:
        return False
    if not within(other.level, violation.level):  # it may be repaired, or not asked for, and leave the other one
        return False
    if violation.finding.message and not other.finding.message:  # no wrong number makes a call fail
        return False
    return used(other) <= used(violation) and violation.loses_digits >= other.loses_digits


def same_mistake(one: Violation, other: Violation) -> bool:
    """Whether one known mistake explains both (a loss of digits: in one dtype), or the same gradients are wrong and no
    other mistake is known, or one call gave the same numbers."""
    common = causes(one.mistakes) & causes(other.mistakes)
    if common:
        return one.case.dtype == other.case.dtype or not all(name.startswith(AT_MOST) for name in common)
    if one.wrong_gradients and one.wrong_gradients == other.wrong_gradients:
        return not (one.mistakes and other.mistakes)
    if one.finding.message or OF_CALLS in (one.rule, other.rule):
        return False
    return repr(one.finding) == repr(other.finding) and call(one) == call(other)


def call(violation: Violation) -> str:
    """The call of its case, whatever the order of the arguments."""
    return repr(replace(violation.case, inputs=dict(sorted(violation.case.inputs.items()))))
