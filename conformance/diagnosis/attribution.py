"""Which rule a failing case speaks of, where that is another one than its probe's.

A case that was drawn to show one thing may show another: a wrong number beside a hidden NaN is no matter of isolation,
and what is right in contiguous arrays is a matter of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arrays import heads_and_keys
from conformance.cases.case import Case
from conformance.cases.expectations import Planted
from conformance.cases.facts import operation_facts
from conformance.cases.facts.attention import FEATURE_RULES
from conformance.cases.features import (
    features_of,
    is_norm,
    mask_kinds,
    masked_as_declared,
    rule_of,
)
from conformance.cases.with_logsumexp import output_alone
from conformance.checks.catalogue import AGREEMENT, MEMORY, TWIN
from conformance.checks.check import Check
from conformance.checks.comparison import Finding, breaks, worst
from conformance.diagnosis.dtypes import ELEMENT
from conformance.diagnosis.following import OF_EMPTY_ROWS, in_empty_row
from conformance.diagnosis.memory import because_of_memory, contiguous
from conformance.runner.in_process import Runner


class Failure(NamedTuple):
    """A failing case: the rule it speaks of, the check by which it fails, its example and what was found."""

    rule: str
    check: Check[Any, Any]
    example: Any
    findings: list[Finding]


def attributed(runner: Runner, failure: Failure) -> Failure:
    """The failure under the rule that it speaks of, with the case that shows it."""
    level = worst(failure.findings).level
    if because_of_memory(runner, failure.check, failure.example, level):
        return failure._replace(rule="ATT-13")
    if failure.rule == "ATT-13" and failure.check in (AGREEMENT, MEMORY):
        plain = contiguous(failure.example)
        findings = asked(runner, plain)
        if breaks(findings, level):
            return Failure(rule_shown(runner, plain, findings), AGREEMENT, plain, findings)
    clean = beside(failure)
    if clean is not None:
        findings = asked(runner, clean)
        if breaks(findings, level) and (of_numbers(failure.findings) or as_wrong(runner, clean, failure.findings)):
            empty = in_empty_row(clean, worst(findings))
            rule = OF_EMPTY_ROWS if empty else rule_shown(runner, clean, findings)
            return Failure(rule, AGREEMENT, clean, findings)
    return failure._replace(rule="NORM-6") if of_gradient_of_norm(failure) else failure


def of_gradient_of_norm(failure: Failure) -> bool:
    """Whether the general rule of a norm is not violated, but that of its gradients: its output is right."""
    if failure.check != AGREEMENT or not is_norm(failure.example.operation):
        return False
    wrong, rules = [one for one in failure.findings if one.ratio > 1], operation_facts(failure.example.operation).rules
    return (
        all(one.name.startswith("gradient of ") for one in wrong)
        and failure.rule == rules[""]
        and rules.get("gradients") == "NORM-6"
    )


def as_wrong(runner: Runner, clean: Case, findings: list[Finding]) -> bool:
    """Whether the element of the worst finding is as wrong without NaN and infinity.

    It is no number, or stands in a row that allows nothing.
    """
    found = worst(findings)
    if found.message:
        return False
    (there,) = runner(ELEMENT, (clean, found), None)
    if there.message or not np.isfinite(there.expected) or there.got == there.expected:
        return False
    return not np.isfinite(there.got) or in_empty_row(clean, found)


def beside(failure: Failure) -> Case | None:
    """The same call without NaN and infinity, where the example has it."""
    if isinstance(failure.example, Planted):
        return failure.example.clean
    twins = failure.example if failure.check == TWIN else ()
    return twins[1] if twins and twins[0].special and not twins[1].special else None


def of_numbers(findings: list[Finding]) -> bool:
    """Whether the worst finding is a number where another one was due."""
    found = worst(findings)
    return not found.message and bool(np.isfinite(found.got) and np.isfinite(found.expected))


def asked(runner: Runner, case: Case) -> list[Finding]:
    return runner(AGREEMENT, case, AGREEMENT.prepare(case))


def rule_shown(
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
    if case.operation != "attention":
        feature = "gradients" if worst(findings).name.startswith("gradient of ") else "cross"
        return "ATT-14" if case.operation.startswith("attention") else rule_of(feature, case.operation)
    if "unmasked" not in runner.declaration:
        not_to_blame = {*not_to_blame, "mask"}
    for plainer in without_each(case):
        if not masked_as_declared(plainer(case), runner.declaration):
            continue
        found = asked(alike or runner, plainer(case))
        if breaks(found, worst(findings).level):
            case, findings = plainer(case), found
    if case.with_logsumexp:
        return "ATT-14"
    kinds = set() if "mask" in not_to_blame else mask_kinds(case.options.get("mask"))
    if len(kinds) > 1:
        return "MASK-6"
    needed = (features_of(case) & ({"bias", "sinks", "softcap", "scale", "dropout"} - {*not_to_blame})) | kinds
    if needed:
        return FEATURE_RULES[min(needed, key=list(FEATURE_RULES).index)]
    H, G, _, _ = heads_and_keys(case)
    if G and H != G and not breaks(asked(runner, with_every_head(case)), worst(findings).level):
        return "ATT-7"
    return "ATT-12" if worst(findings).name.startswith("gradient of ") else "ATT-8"


def without_each(case: Case) -> Iterator[Any]:
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


def with_every_head(case: Case) -> Case:
    """The same with a key head for every query head."""
    H, G, _, _ = heads_and_keys(case)
    inputs = {n: np.repeat(a, H // G, axis=1) if n in ("key", "value") else a for n, a in case.inputs.items()}
    return replace(case, inputs=inputs)
