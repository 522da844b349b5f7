"""Comparison of two reports: verdicts, error ratios that differ by a large factor, versions and settings."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.checks.levels import STRICT, rank
from conformance.reports.content import SCHEMA, Content, real

READ = (1, 2, 3, 4, 5)
"""Versions of the schema that this file reads. The first two have no levels."""
CIRCUMSTANCES = ("project", "seed", "effort", "cases_per_probe", "runs")
DRAWN_BY = ("numpy", "hypothesis")
"""Packages whose version decides which cases a seed generates."""
FACTOR = 2.0
"""An error ratio that grows or shrinks by more than this factor is a change."""


@dataclass(frozen=True)
class Change:
    """A difference. kind: "worse", "better" or "other"."""

    kind: str
    subject: str
    rule: str
    text: str


def read_report(path: Path) -> Content:
    """Read a whole report; raise ValueError if the file is not one, or has another version of the schema."""
    report = read_content(path)
    if part := report.get("part"):
        raise ValueError(
            f"{path} is part {part['number']} of {part['parts']} of a run; conformance merge makes it whole"
        )
    return report


def read_content(path: Path) -> Content:
    """Read a whole report, or a part of one; raise ValueError as `read_report` does."""
    try:
        report: Any = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a report: {getattr(error, 'strerror', None) or error}") from error
    schema = report.get("schema") if isinstance(report, dict) else None
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA["name"] or "subjects" not in report:
        raise ValueError(f"{path} is not a report")
    if schema.get("version") not in READ:
        raise ValueError(f"{path} has version {schema.get('version')}, expected {' or '.join(map(str, READ))}")
    return report


def circumstances(before: Content, after: Content) -> list[str]:
    """Return one line for each version or setting that differs."""
    olds, news = (
        {name: report[name] for name in CIRCUMSTANCES}
        | {"format of the report": report["schema"]["version"]}
        | report["versions"]
        for report in (before, after)
    )
    pairs = {name: (olds.get(name), news.get(name)) for name in olds | news}
    return [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new]


def changes(before: Content, after: Content) -> list[Change]:
    """Return every change, rule by rule.

    A larger ratio is worse only where the rule is violated, and if both runs generated the same cases.
    """
    found = []
    same_cases = all(before[name] == after[name] for name in CIRCUMSTANCES)
    same_cases &= all(before["versions"].get(name) == after["versions"].get(name) for name in DRAWN_BY)
    if after["error"] is not None and after["error"] != before["error"]:
        found.append(Change("worse", "", "", f"not judged: {after['error']}"))
    alone = len(before["subjects"]) == len(after["subjects"]) == 1  # they are a pair, whatever their names
    olds, news = ({"" if alone else one["name"]: one for one in report["subjects"]} for report in (before, after))
    for key in olds | news:
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            kind, text = ("worse", "no longer judged") if new is None else ("other", "judged now")
            found.append(Change(kind, key, "", text))
            continue
        same = same_cases and all(old[name] == new[name] for name in ("declaration", "untried"))
        found += subject_changes(old, new, same)
    return found


def compare_declarations(old: Content, new: Content) -> list[str]:
    before, after = old["declaration"] or {}, new["declaration"] or {}
    found = []
    for part in [part for part in before | after if before.get(part) != after.get(part)]:
        one, other = before.get(part), after.get(part)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [f"{n} {one.get(n)} -> {other.get(n)}" for n in one | other if one.get(n) != other.get(n)]
        elif isinstance(one, list) and isinstance(other, list):
            found += [f"{part}: no {name}" for name in one if name not in other]
            found += [f"{part}: {name}" for name in other if name not in one]
        else:
            found.append(f"{part} {one} -> {other}")
    return found


def subject_changes(old: Content, new: Content, same: bool) -> list[Change]:
    found, name = [], new["name"]
    if (old["untried"] or "") != (new["untried"] or ""):
        kind = "worse" if new["untried"] else "better"
        found.append(Change(kind, name, "", new["untried"] or "everything was tried again"))
    if (old["declaration"] or {}) != (new["declaration"] or {}):
        found.append(Change("other", name, "", f"another declaration: {', '.join(compare_declarations(old, new))}"))
    profiles = [subject.get("profile", STRICT) for subject in (old, new)]
    if profiles[0] != profiles[1]:
        found.append(Change("other", name, "", f"another profile: {' -> '.join(profiles)}"))
    rules = [{rule["rule"]: rule for rule in subject["rules"]} for subject in (old, new)]
    for rule in dict.fromkeys([*rules[0], *rules[1]]):
        absent = {"status": "untried", "worst": None, "worst_wide": None}
        kind, text = rule_change(rules[0].get(rule, absent), rules[1].get(rule, absent), same)
        if kind:
            found.append(Change(kind, name, rule, text))
    return found


def rule_change(old: Content, new: Content, same: bool) -> tuple[str, str]:
    """Return (kind, text) of the change; ("", "") if there is none."""
    match old["status"], new["status"]:
        case before, after if before == after:
            pass
        case _, "violated":
            return "worse", f"violated now, {describe_worst(new)}"
        case before, "untried":
            return "worse", f"no longer tried; {'it was violated' if before == 'violated' else 'it conformed'}"
        case "violated", _:
            return "better", f"repaired, {describe_worst(new)}"
        case _:
            return "other", f"tried now, {describe_worst(new)}"
    before, after = old.get("level"), new.get("level")  # None where it is not violated, or a report has no levels
    if before is not None and after is not None and before != after:
        return "better" if rank(after) > rank(before) else "worse", f"violated at the level {before} -> {after}"
    # The larger of two changes: of the error ratio in float32 and float64, and in all dtypes.
    logarithms = [log_factor(real(old[name]), real(new[name])) for name in ("worst_wide", "worst")]
    largest = max(logarithms, key=abs)
    if abs(largest) <= math.log(FACTOR):
        return "", ""
    kind = "better" if largest < 0 else "other" if new["status"] == "conforms" else "worse"
    text = f"{describe_worst(old)} -> {describe_worst(new)}"
    return (kind, text) if same else ("other", f"{text}, on other cases")


def log_factor(old: float, new: float) -> float:
    """Return the logarithm of new / old; 0 if there is nothing to compare."""
    if math.isnan(old) or math.isnan(new) or old == new:
        return 0.0
    if old == 0 or math.isinf(new):
        return math.inf
    return -math.inf if new == 0 or math.isinf(old) else math.log(new / old)


def describe_worst(rule: Content) -> str:
    worst, wide = real(rule["worst"]), real(rule.get("worst_wide"))
    if math.isnan(worst):
        return "not tried"
    largest = "beyond any bound" if math.isinf(worst) else f"{worst:.3g} of its bound"
    narrow = f" ({wide:.3g} in float32 and float64)" if math.isfinite(wide) else ""
    return f"worst error {largest}{narrow}"
