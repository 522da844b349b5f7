"""Which violations stand for themselves, and which follow from something more basic.

A bug that is in every call breaks rules about masks, softcap and gradients too. Such a violation is known by its
smallest case, from which all that its rule is about has been cut away.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.declaration import FEATURES, MASK_KINDS
from conformance.expectations import empty_rows
from conformance.features import OPERATION_RULES, features_of, rule_of
from conformance.tally import Violation

WIDER = ("ATT-1", "ATT-5", "ATT-6", "ATT-8", "ATT-9")
"""Rules that speak of more than their features: the default scale, softmax, empty rows, every shape, every dtype."""
MASKED = frozenset({*MASK_KINDS, "bias"})
"""Features that forbid pairs."""
OF_MASKS = dict.fromkeys(("MASK-1", "MASK-5", "MASK-6", "MASK-7", "ATT-4"), MASKED)
"""Rules of what forbids pairs, whatever does it."""
OF_MANY = ("offset",)
"""Features that masks of several rules have."""
ASKED_BEYOND = ("refusal", "unsupported", "nothing")
"""Examinations by which nothing is found but what they ask for."""
OF_CALLS = ("determinism", "views", "broadcast cotangents")
"""Examinations of how it is called: from what they find no wrong numbers follow."""


def about(rule: str, operation: str) -> frozenset[str]:
    """Features of which a case must have one for the rule to speak of it; empty for rules of every case."""
    named = {feature for feature in FEATURES if rule_of(feature, operation) == rule and feature not in OF_MANY}
    if operation in OPERATION_RULES:
        return frozenset(named & OPERATION_RULES[operation].keys())
    return frozenset() if rule in WIDER else OF_MASKS.get(rule, frozenset(named))


def used(violation: Violation) -> set[str]:
    """Features of its smallest case."""
    return set() if violation.case is None or violation.examined_by == "refusal" else features_of(violation.case)


def shows_its_rule(violation: Violation) -> bool:
    """Whether its smallest case has what its rule is about."""
    if violation.rule == "CALL" or violation.case is None or violation.examined_by in ASKED_BEYOND:
        return True
    if violation.rule == "ATT-6" and violation.case.operation.startswith("attention"):
        return bool(empty_rows(violation.case).any())
    needed = about(violation.rule, violation.case.operation)
    return not needed or bool(needed & used(violation))


def simplest_first(violations: Sequence[Violation]) -> list[Violation]:
    """The plain call, then by the features and the sizes of the smallest case, then what must be refused."""

    def complexity(violation: Violation) -> tuple[bool, bool, int, int]:
        inputs = {} if violation.case is None else violation.case.inputs
        beyond = violation.examined_by in ("refusal", "unsupported")
        return violation.rule != "CALL", beyond, len(used(violation)), sum(array.size for array in inputs.values())

    return sorted(violations, key=complexity)


def separated(violations: Sequence[Violation]) -> tuple[list[Violation], list[Violation]]:
    """(those that stand for themselves, those that follow from them), both from the simplest.

    One follows where another shows wrong answers on a call with no feature that its own smallest case lacks.
    """
    ordered = simplest_first(violations)
    alone = [violation for violation in ordered if shows_its_rule(violation)]
    following = []
    for violation in (violation for violation in ordered if not shows_its_rule(violation)):
        if any(used(other) <= used(violation) for other in filter(explains, alone)):
            following.append(violation)
        else:
            alone.append(violation)
    return simplest_first(alone), following


def explains(violation: Violation) -> bool:
    """Whether other violations may follow from it."""
    return violation.case is not None and violation.examined_by not in (*ASKED_BEYOND, *OF_CALLS)
