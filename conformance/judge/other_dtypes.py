"""Errors in one dtype behind a violation whose smallest case has another.

A report shows one smallest case of a rule. Where the rule is violated in another dtype too, that case is tried there.
If it is right, it may be another mistake that shows in that dtype, which gets a smallest case and a diagnosis too.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.checks.results import Results, Violation, Worst
from conformance.diagnosis.following import separated
from conformance.diagnosis.naming import diagnosis
from conformance.judge.judged_rules import JUDGED
from conformance.judge.run import asking, cut_down
from conformance.judge.thresholds import FIRST
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import cuttable, in_dtype, mapped


def with_other_dtypes(results: Results, runner: Runner, seconds: float) -> None:
    """Look behind the first violations that stand for themselves, once into each dtype.

    seconds: for each smaller case, at most.
    """
    in_order = sorted(results.violations.values(), key=lambda violation: list(JUDGED).index(violation.rule))
    told = set[str]()
    for violation in separated(in_order)[0][:FIRST]:
        if violation.case is None or violation.of_state or not cuttable(violation.material):
            continue
        told.add(violation.case.dtype)
        new = {dtype: one for dtype, one in violation.worst.items() if dtype not in told}
        found = {dtype: examined(violation, one, runner, seconds) for dtype, one in new.items()}
        told |= {dtype for dtype, one in found.items() if one.own_case}
        results.violations[violation.rule, violation.subject] = replace(violation, worst={**violation.worst, **found})


def examined(violation: Violation, largest: Worst, runner: Runner, seconds: float) -> Worst:
    """The largest error of a dtype; where the violation's case is right there, with the smallest case that is wrong."""
    found = largest.found
    same = mapped(violation.material, in_dtype(found.case.dtype, runner.declaration))
    if same is None or found.finding.message or runner.overrun:
        return largest
    if asking(violation, runner)(same) is not None:
        return largest
    smallest = cut_down(found, runner, seconds, keeps_dtype=True)
    names = diagnosis(replace(smallest, uncut=None), runner) and diagnosis(smallest, runner)
    return Worst(largest.ratio, replace(smallest, diagnosis=names), own_case=True)
