"""Which rule a failing case speaks of, where that is another one than its probe's.

A case that was drawn to show one thing may show another: a wrong number beside a hidden NaN is no matter of isolation,
and what is right in contiguous arrays is a matter of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import is_gradient
from conformance.cases.case import Case, heads_and_keys, output_alone
from conformance.cases.expectations import Planted
from conformance.cases.facts import FEATURE_RULES, operation_facts
from conformance.cases.features import features_of, has_declared_masks, mask_kinds, rule_of
from conformance.cases.signatures import equals_default
from conformance.checks.catalogue import AGREEMENT, DETERMINISM, MEMORY, REPETITIONS, TWIN, Check, first, nothing
from conformance.checks.comparison import OF_QUERIES, OF_ROWS, breaks, empty_output_rows, worst
from conformance.checks.findings import Finding, ProcessEnded, TookTooLong, is_error
from conformance.checks.levels import STATE_RULE
from conformance.oracle.reference import oracle
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import depends_on_layout, lay_contiguous
from conformance.subjects.subject import Subject

FAILED_CALL = ("raised", "process_ended")
"""Kinds of findings of a call that gives no results, be it the first of several equal ones or the only one."""
OF_EMPTY_ROWS = "ATT-6"
"""The rule of rows that allow nothing."""


class Failure(NamedTuple):
    """A failing case: the rule it speaks of, the check by which it fails, its example and what was found."""

    rule: str
    check: Check[Any, Any]
    example: Any
    findings: list[Finding]


def attribute(runner: Runner, failure: Failure, shared: object = None) -> Failure:
    """The failure under the rule that it speaks of, with the case that shows it. shared: what its check has prepared.

    What depends on memory layouts is always of `STATE_RULE`. A call that fails by itself is none of it.
    """
    level = worst(failure.findings).level
    if depends_on_layout(runner, failure.check, failure.example, level, shared):
        return failure._replace(rule=STATE_RULE)
    raised = worst(failure.findings).kind in FAILED_CALL and failure.check in (DETERMINISM, REPETITIONS)
    if failure.rule == STATE_RULE and (raised or failure.check in (AGREEMENT, MEMORY)):
        plain = lay_contiguous(failure.example)
        findings = check_agreement(runner, plain)
        if breaks(findings, level) and (not raised or worst(findings).kind == worst(failure.findings).kind):
            return Failure(find_rule(runner, plain, findings), AGREEMENT, plain, findings)
    clean = clean_twin(failure)
    if clean is not None:
        findings = check_agreement(runner, clean)
        first = worst(failure.findings)
        is_number = first.kind == "value" and np.isfinite(first.got) and np.isfinite(first.expected)
        if breaks(findings, level) and (is_number or is_as_wrong(runner, clean, first)):
            empty = is_in_empty_row(clean, worst(findings))
            rule = OF_EMPTY_ROWS if empty else find_rule(runner, clean, findings)
            return Failure(rule, AGREEMENT, clean, findings)
    return failure._replace(rule=choose_rule(runner, failure)) if failure.check == AGREEMENT else failure


def choose_rule(runner: Runner, failure: Failure) -> str:
    """Of an operation's general rule and those of its gradients and options, the one that the case shows.

    A failure of another rule, and of attention, stays where it is.
    """
    facts = operation_facts(failure.example.operation)
    own = {facts.rules[""], facts.rules.get("gradients"), *facts.option_rules.values()}
    if facts.masked or failure.rule not in own:
        return failure.rule
    if isinstance(worst(failure.findings).detail, TookTooLong | ProcessEnded):  # asked again, it would do so again
        return failure.rule
    return find_option_rule(runner, failure.example, failure.findings)


def find_option_rule(runner: Runner, case: Case, findings: list[Finding]) -> str:
    """The rule of the option without which the case does not fail; else that of gradients, if it does not fail where
    none are asked for; else the operation's general rule.
    """
    facts, first = operation_facts(case.operation), worst(findings)
    general, level = facts.rules[""], first.level
    for option, rule in facts.option_rules.items():
        if not equals_default(case.operation, option, case.options.get(option)):
            options = {name: value for name, value in case.options.items() if name != option}
            if not breaks(check_agreement(runner, replace(case, options=options)), level):
                return rule
    if all(is_gradient(one.name) for one in findings if one.ratio > 1):
        return facts.rules.get("gradients", general)
    if is_error(first) and case.cotangents and "gradients" in facts.rules:
        fails = breaks(check_agreement(runner, replace(case, cotangents={})), level)
        return general if fails else facts.rules["gradients"]
    return general


def is_as_wrong(runner: Runner, clean: Case, finding: Finding) -> bool:
    """Whether the element of a finding is as wrong without NaN and infinity.

    It is no number, or stands in a row that allows nothing.
    """
    if finding.kind != "value":
        return False
    (there,) = runner(ELEMENT, (clean, finding), None)
    if there.kind != "value" or not np.isfinite(there.expected) or there.got == there.expected:
        return False
    return not np.isfinite(there.got) or is_in_empty_row(clean, finding)


def clean_twin(failure: Failure) -> Case | None:
    """The same call without NaN and infinity, where the example has it."""
    if isinstance(failure.example, Planted):
        return failure.example.clean
    twins = failure.example if failure.check == TWIN else ()
    return twins[1] if twins and twins[0].special and not twins[1].special else None


def check_element(subject: Subject, example: tuple[Case, Finding], shared: None) -> list[Finding]:
    """The element of which a finding speaks, in the answers to another case."""
    case, finding = example
    where, name = finding.index, finding.name
    got, exact = subject(case)[name], oracle(case)[name].high
    one = replace(finding, got=float(got[where]), expected=float(exact[where]), bound=float(bound(case)[name][where]))
    return [replace(one, ratio=0.0)]


ELEMENT = Check("element", nothing, check_element, first, tells_size=False)


def is_in_empty_row(case: Case, finding: Finding) -> bool:
    """Whether the element that is farthest off stands in a row of the result that allows nothing."""
    if case.operation not in OF_QUERIES or finding.name not in OF_ROWS or finding.kind != "value":
        return False
    rows = empty_output_rows(case)
    return bool(rows[finding.index[: rows.ndim]])


def check_agreement(runner: Runner, case: Case) -> list[Finding]:
    return runner(AGREEMENT, case, AGREEMENT.prepare(case))


def find_rule(
    runner: Runner,
    case: Case,
    findings: list[Finding],
    alike: Runner | None = None,
    not_to_blame: Collection[str] = (),
) -> str:
    """The rule of the one thing without which the case would not fail; ATT-8, "every shape", where there is none.

    alike: finds nothing in cases that fail for another reason. not_to_blame: inputs and options that the subject cannot
    do without, though the case fails for another reason.
    """
    if isinstance(worst(findings).detail, TookTooLong):  # asked again, it would do so again
        return rule_of("cross", case.operation)
    if case.operation != "attention":
        return "ATT-14" if case.operation.startswith("attention") else find_option_rule(runner, case, findings)
    if "unmasked" not in runner.declaration:
        not_to_blame = {*not_to_blame, "mask"}
    for take_away in take_away_each(case):
        if not has_declared_masks(take_away(case), runner.declaration):
            continue
        without = check_agreement(alike or runner, take_away(case))
        if breaks(without, worst(findings).level):
            case, findings = take_away(case), without
    if case.with_logsumexp:
        return "ATT-14"
    kinds = set() if "mask" in not_to_blame else mask_kinds(case.options.get("mask"))
    if len(kinds) > 1:
        return "MASK-6"
    needed = (features_of(case) & ({"bias", "sinks", "softcap", "scale", "dropout"} - {*not_to_blame})) | kinds
    if needed:
        return FEATURE_RULES[min(needed, key=list(FEATURE_RULES).index)]
    H, G, _, _ = heads_and_keys(case)
    if G and H != G:
        repeated = {name: np.repeat(case.inputs[name], H // G, axis=1) for name in ("key", "value")}
        with_own_keys = replace(case, inputs=case.inputs | repeated)
        if not breaks(check_agreement(runner, with_own_keys), worst(findings).level):
            return "ATT-7"
    return "ATT-12" if is_gradient(worst(findings).name) else "ATT-8"


def take_away_each(case: Case) -> Iterator[Any]:
    """Changes that each take one thing away from a case."""
    if case.with_logsumexp:
        yield output_alone
    for name in {"bias", "sinks"} & set(case.inputs):
        yield lambda c, name=name: replace(c, inputs={n: a for n, a in c.inputs.items() if n != name})
    groups: tuple[tuple[str, ...], ...] = (("dropout_keep", "dropout_rate"), ("mask",), ("softcap",), ("scale",))
    for names in groups:
        if any(case.options.get(name) is not None for name in names):
            yield lambda c, names=names: replace(c, options={n: o for n, o in c.options.items() if n not in names})
    if case.cotangents:
        yield lambda c: replace(c, cotangents={})
