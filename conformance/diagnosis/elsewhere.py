"""What is said of a violation whose rule need not be the place to look at."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.case import Case
from conformance.cases.declaration import MASK_KINDS
from conformance.cases.features import masked_as_declared, rule_of
from conformance.checks.catalogue import AGREEMENT
from conformance.checks.comparison import breaks
from conformance.checks.results import ALSO_WITHOUT, LOOK_BEYOND, Results, Violation
from conformance.diagnosis.following import WIDER, about, definite, is_plain, rule_named, shows_its_rule, used
from conformance.diagnosis.matches import made_finite
from conformance.diagnosis.naming import diagnosed
from conformance.runner.in_process import JudgeError, Runner
from conformance.runner.shrinking import without
from specification.rules import RULES

OF_DESCRIPTIONS = "MASK-2"
"""The rule of all masks that are described."""
OF_THEIR_OWN = ("combined", "or", "causal", "window")
"""Masks that have another rule as well."""
ARGUMENTS = {
    **dict.fromkeys(MASK_KINDS, "mask"),
    "bias": "bias",
    "softcap": "softcap",
    "scale": "scale",
    "sinks": "sinks",
}
"""The argument that gives a case a feature of attention."""


def explained(results: Results, runner: Runner) -> None:
    """Add to each violation its diagnosis, and then what says that its rule need not be the place."""
    diagnosed(results, runner)
    with_hints(results, runner)


def with_hints(results: Results, runner: Runner) -> None:
    """Add to each violation what says that its rule need not be the place."""
    for key, violation in results.violations.items():
        hint = hint_for(violation, runner)
        if hint:
            line = f"{LOOK_BEYOND}{violation.rule}: {hint}"
            results.violations[key] = replace(violation, diagnosis=(*violation.diagnosis, line))


def hint_for(violation: Violation, runner: Runner) -> str:
    """Why to look elsewhere; empty where there is no reason, or a known mistake is one of its rule."""
    case = violation.case
    if case is None or violation.finding.kind != "value":
        return ""
    shown, named = shows_its_rule(violation), rule_named(violation)
    if named and named != violation.rule and (not shown or violation.rule in WIDER):
        return f"the mistake is one of {named}, {RULES[named].title}"
    if not shown:
        kind = next((one for one in OF_THEIR_OWN if one in used(violation)), "")
        if violation.rule != OF_DESCRIPTIONS or not kind:
            return "this case has nothing that it speaks of"
        rule = rule_of(kind, case.operation)
        return f"the mask of this case has a rule of its own, {rule}, {RULES[rule].title}"
    if definite(violation):
        return ""
    if case.special:
        finite = made_finite(case)
        wrong = not finite.special and is_wrong(finite, violation, runner)
        return f"with numbers in place of NaN and infinity{ALSO_WITHOUT}" if wrong else ""
    needed = about(violation.rule, case.operation)
    if not needed:
        plain = case.operation.startswith("attention") and violation.rule in WIDER and is_plain(violation)
        vague = plain and not violation.loses_digits
        return f"a plain call is wrong: any step may be mistaken, that of {violation.rule} among them" if vague else ""
    names = {ARGUMENTS[feature] for feature in needed & used(violation) if feature in ARGUMENTS}
    plainer, words = without(*names)(case), f"without {' and '.join(sorted(names))}"
    if plainer is None or not masked_as_declared(plainer, runner.declaration):
        return ""
    return f"{words}{ALSO_WITHOUT}" if is_wrong(plainer, violation, runner) else ""


def is_wrong(case: Case, violation: Violation, runner: Runner) -> bool:
    """Whether a case without something fails, too."""
    try:
        return breaks(runner(AGREEMENT, case, AGREEMENT.prepare(case)), violation.level)
    except JudgeError:  # no verdict depends on it
        return False
