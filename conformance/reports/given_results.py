"""What `compare` has found, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.reports.causes import (
    condition_content,
    describe_condition,
    describe_pattern,
    mistake_content,
)
from conformance.reports.sentences import describe_finding

if TYPE_CHECKING:
    from conformance.judge.given_results import Comparison


def describe_comparison(comparison: Comparison) -> str:
    """Return the verdict in one line, and what is wrong in some more."""
    verdict = "conforms" if comparison.conforms else f"is wrong at {comparison.worst.level}"
    largest = f"the largest error is {comparison.error_ratio:.3g} bounds"
    told = [f"{comparison.operation} {verdict} ({comparison.profile}); {largest}"]
    told += [f"{one.level}: {describe_finding(one)}" for one in comparison.findings if one.ratio > 1]
    pattern = comparison.pattern
    if pattern is not None:
        places = [vars(one) | {"axis": list(one.axis)} for one in pattern.places]
        where = (
            describe_pattern({"result": pattern.result, "places": places}) or f"{pattern.result} is wrong throughout"
        )
        told.append(where if pattern.share == 1 else f"{where}; {pattern.share:.1%} of its numbers are wrong")
    if comparison.diagnosis is not None:
        mistake = mistake_content(comparison.diagnosis.mistake)
        when = None if comparison.condition is None else describe_condition(condition_content(comparison.condition))
        told.append(f"{mistake['rule']}: {mistake['says']}{f', {when}' if when else ''}")
    return "\n  ".join(told)
