"""What `compare` has found, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.reports import causes
from conformance.reports.sentences import describe_finding

if TYPE_CHECKING:
    from conformance.judge.given_results import Comparison


def describe_comparison(comparison: Comparison) -> str:
    verdict = "conforms" if comparison.conforms else f"is wrong at {comparison.worst.level}"
    largest = f"the largest error is {comparison.error_ratio:.3g} bounds"
    told = [f"{comparison.operation} {verdict} ({comparison.profile}); {largest}"]
    told += [f"{one.level}: {describe_finding(one)}" for one in comparison.findings if one.ratio > 1]
    if (pattern := comparison.pattern) is not None:
        where = causes.describe_pattern(causes.pattern_content(pattern)) or f"{pattern.result} is wrong throughout"
        told.append(where if pattern.share == 1 else f"{where}; {pattern.share:.1%} of its numbers are wrong")
    if comparison.diagnosis is not None:
        mistake, condition = causes.mistake_content(comparison.diagnosis.mistake), comparison.condition
        when = condition and causes.describe_condition(causes.condition_content(condition))
        told.append(f"{mistake['rule']}: {mistake['says']}{f', {when}' if when else ''}")
    return "\n  ".join(told)
