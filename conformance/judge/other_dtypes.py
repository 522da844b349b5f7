"""Mistakes in one dtype behind a violation whose smallest case has another.

A report shows one smallest case of a rule. Where the rule is violated in another dtype too, the subject is asked the
same numbers in both. A mistake that is in both gives errors of about one size, or of about as many units of each
dtype's rounding. If neither is so, the largest error in the other dtype gets a smallest case and a diagnosis of its
own. It is another mistake, unless that diagnosis names the same known one.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.checks.results import Results, Violation, Worst
from conformance.diagnosis.dtypes import is_gone
from conformance.diagnosis.naming import diagnosis
from conformance.diagnosis.precision import AT_MOST
from conformance.judge.run import cut_down
from conformance.judge.thresholds import MOST_OF_SLOW, first_alone, work
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import cuttable


def with_other_dtypes(results: Results, runner: Runner, seconds: float) -> None:
    """Look behind the first violations that stand for themselves, until a dtype has a mistake of its own.

    seconds: for each smaller case, at most.
    """
    told = set[str]()
    for violation in first_alone(results):
        if violation.case is None or violation.finding.kind != "value" or not cuttable(violation.example):
            continue
        told.add(violation.case.dtype)
        new = {dtype: one for dtype, one in violation.worst.items() if dtype not in told}
        found = {dtype: examined(violation, one, runner, seconds) for dtype, one in new.items()}
        told |= {dtype for dtype, one in found.items() if one.another}
        results.violations[violation.rule, violation.subject] = replace(violation, worst={**violation.worst, **found})


def examined(violation: Violation, largest: Worst, runner: Runner, seconds: float) -> Worst:
    """The largest error of a dtype; of another mistake than the violation's with its smallest case and names."""
    found = largest.found
    if found.finding.kind != "value" or runner.overrun:
        return largest
    if not is_another(violation, found, runner):
        return largest
    smallest = cut_down(found, runner, seconds, keeps_dtype=True)
    names = diagnosis(replace(smallest, uncut=None), runner) and diagnosis(smallest, runner)
    other = replace(smallest, diagnosis=names)
    return largest if of_one_name(violation, other) else Worst(largest.ratio, other, another=True)


def of_one_name(one: Violation, other: Violation) -> bool:
    """Whether the first known mistake behind both is the same, and no mere hint."""
    first, second = one.mistakes[:1], other.mistakes[:1]
    return first == second != () and not first[0].startswith(AT_MOST)


def is_another(one: Violation, other: Violation, runner: Runner) -> bool:
    """Whether the error of one of the two does not show in the other's dtype; large cases are not asked again."""
    both = (one, other.case.dtype), (other, one.case.dtype)
    return any(work(found.case) <= MOST_OF_SLOW and is_gone(found, dtype, runner) for found, dtype in both)
