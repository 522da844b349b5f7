"""A change of a rule or a step between two reports: another verdict, or an error that differs by a large factor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from conformance.checks.levels import rank
from conformance.reports.content import Content, real

FACTOR = 2.0
"""An error ratio that grows or shrinks by more than this factor is a change."""


@dataclass(frozen=True)
class Change:
    """A difference. kind: "worse", "better" or "other"."""

    kind: str
    subject: str
    rule: str
    text: str


def rule_change(old: Content, new: Content, same: bool) -> tuple[str, str]:
    """Return (kind, text) of the change; ("", "") if there is none."""
    if old["status"] != new["status"]:
        return status_change(old, new)
    return level_change(old, new) or ratio_change(old, new, same)


def level_change(old: Content, new: Content) -> tuple[str, str] | None:
    """Return (kind, text) for a rule violated at another level; None if it is not, or a report has no levels."""
    before, after = old.get("level"), new.get("level")
    if before is None or after is None or before == after:
        return None
    return "better" if rank(after) > rank(before) else "worse", f"violated at the level {before} -> {after}"


def status_change(old: Content, new: Content) -> tuple[str, str]:
    """Return (kind, text) for two verdicts that differ."""
    if new["status"] == "violated":
        return "worse", f"violated now, {describe_worst(new)}"
    if new["status"] == "untried":
        return "worse", f"no longer tried; {'it was violated' if old['status'] == 'violated' else 'it conformed'}"
    if old["status"] == "violated":
        return "better", f"repaired, {describe_worst(new)}"
    return "other", f"tried now, {describe_worst(new)}"


def ratio_change(old: Content, new: Content, same: bool) -> tuple[str, str]:
    """Return the larger of two changes: of the error ratio in float32 and float64, and in all dtypes."""
    factors = [factor(real(old[name]), real(new[name])) for name in ("worst_wide", "worst")]
    largest = max(factors, key=size)
    if 1 / FACTOR <= largest <= FACTOR:
        return "", ""
    kind = "better" if largest < 1 else "worse"
    text = f"{describe_worst(old)} -> {describe_worst(new)}"
    return (kind, text) if same else ("other", f"{text}, on other cases")


def factor(old: float, new: float) -> float:
    """Return new / old; 1 if there is nothing to compare."""
    if math.isnan(old) or math.isnan(new) or old == new:
        return 1.0
    return math.inf if old == 0 or math.isinf(new) else new / old


def size(by: float) -> float:
    """Return how much a factor changes an error, in either direction."""
    return abs(math.log(by)) if by > 0 else math.inf


def describe_worst(rule: Content) -> str:
    worst, wide = real(rule["worst"]), real(rule.get("worst_wide"))
    if math.isnan(worst):
        return "not tried"
    if math.isinf(worst):
        return "worst error beyond any bound"
    narrow = "" if math.isnan(wide) else f" ({wide:.3g} in float32 and float64)"
    return f"worst error {worst:.3g} of its bound{narrow}"
