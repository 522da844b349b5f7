"""What `compare` has found, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.cases.arguments import gradient_input, is_gradient
from conformance.reports import causes
from conformance.reports.sentences import describe_finding

if TYPE_CHECKING:
    from conformance.judge.given_results import Comparison

MOST_NAMES = 6
"""Results, or gradients, that a line names."""


def describe_comparison(comparison: Comparison) -> str:
    verdict = "conforms" if comparison.conforms else f"is wrong at {comparison.worst.level}"
    wrong = [one.name for one in comparison.findings if one.ratio > 1]
    right = [one.name for one in comparison.findings if one.ratio <= 1]
    conform = "conforms" if len(right) == 1 else "conform"
    judged = describe_judged(wrong or right) + (f" ({describe_judged(right)} {conform})" if wrong and right else "")
    ratio = comparison.error_ratio
    largest = f"; the largest error is {ratio:.3g} bounds" if np.isfinite(ratio) else ""
    told = [f"{comparison.operation} {verdict} ({comparison.profile}): {judged}{largest}"]
    told += [f"{one.level}: {describe_finding(one)}" for one in comparison.findings if one.ratio > 1]
    if (pattern := comparison.pattern) is not None:
        where = causes.describe_pattern(causes.pattern_content(pattern)) or f"{pattern.result} is wrong throughout"
        told.append(where if pattern.share == 1 else f"{where}; {pattern.share:.1%} of its numbers are wrong")
    if comparison.conforms_with:
        told.append(f"it conforms with {comparison.conforms_with}")
    elif comparison.too_large:
        told.append("too large for the known mistakes to be tried: pass fewer rows, heads or keys")
    elif comparison.diagnosis is not None:
        mistake, condition = causes.mistake_content(comparison.diagnosis.mistake), comparison.condition
        when = condition and causes.describe_condition(causes.condition_content(condition))
        told.append(f"{mistake['rule']}: {mistake['says']}{f', {when}' if when else ''}")
    return "\n  ".join(told)


def describe_judged(names: list[str]) -> str:
    """Say which results and gradients were judged; of many, how many."""
    results = [name for name in names if not is_gradient(name)]
    gradients = [gradient_input(name) or "" for name in names if is_gradient(name)]
    told = results if len(results) <= MOST_NAMES else [f"{len(results)} results"]
    if len(gradients) > MOST_NAMES:
        told = [*told, f"{len(gradients)} gradients"]
    elif gradients:
        told = [*told, f"gradient{'s' * (len(gradients) > 1)} of {causes.join_words(gradients)}"]
    return ", ".join(told)
