"""What changed from one report to another: rules, ratios, and under which circumstances."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.reports.content import SCHEMA, Content, real

FACTOR = 2.0
"""A worst ratio that grows or shrinks by more than this is a change."""
CIRCUMSTANCES = ("project", "seed", "effort", "cases_per_probe", "runs")
DRAWN_BY = ("numpy", "hypothesis")
"""Packages with other versions of which a seed may draw other cases."""


@dataclass(frozen=True)
class Change:
    """One thing that is different. kind: "worse", "better" or "other"."""

    kind: str
    subject: str
    rule: str
    text: str


def read_report(path: Path) -> Content:
    """ValueError where the file is no report, or one of another version of the schema."""
    try:
        report: Any = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a report: {error}") from error
    schema = report.get("schema") if isinstance(report, dict) else None
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA["name"] or "subjects" not in report:
        raise ValueError(f"{path} is no report")
    if schema.get("version") != SCHEMA["version"]:
        raise ValueError(f"{path} has version {schema.get('version')}, expected {SCHEMA['version']}")
    return report


def circumstances(before: Content, after: Content) -> list[str]:
    """Versions, seed and effort that differ, one line each."""
    lines = [f"{name}: {before[name]} -> {after[name]}" for name in CIRCUMSTANCES if before[name] != after[name]]
    packages = {**before["versions"], **after["versions"]}
    pairs = {name: (before["versions"].get(name), after["versions"].get(name)) for name in packages}
    return lines + [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new]


def same_cases(before: Content, after: Content) -> bool:
    """Whether both runs drew the same cases for the same declaration, so that their ratios can be compared."""
    same = all(before[name] == after[name] for name in CIRCUMSTANCES)
    return same and all(before["versions"].get(name) == after["versions"].get(name) for name in DRAWN_BY)


def changes(before: Content, after: Content) -> list[Change]:
    """Every change, rule by rule. A ratio that grew is worse only where both runs drew the same cases."""
    found = []
    if after["error"] is not None and after["error"] != before["error"]:
        found.append(Change("worse", "", "", f"not judged: {after['error']}"))
    for old, new in pairs(before, after):
        if old is None or new is None:
            kind, text = ("worse", "judged no longer") if new is None else ("other", "judged now")
            found.append(Change(kind, (old or new or {})["name"], "", text))
            continue
        same = same_cases(before, after) and old["declaration"] == new["declaration"]
        found += subject_changes(old, new, same)
    return found


def pairs(before: Content, after: Content) -> list[tuple[Content | None, Content | None]]:
    """Subjects of the same name; the only subjects of both whatever their names."""
    if len(before["subjects"]) == len(after["subjects"]) == 1:
        return [(before["subjects"][0], after["subjects"][0])]
    old, new = ({subject["name"]: subject for subject in report["subjects"]} for report in (before, after))
    return [(old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def subject_changes(old: Content, new: Content, same: bool) -> list[Change]:
    found, name = [], new["name"]
    if (old["untried"] or "") != (new["untried"] or ""):
        kind = "worse" if new["untried"] else "better"
        found.append(Change(kind, name, "", new["untried"] or "everything was tried again"))
    rules = [{rule["rule"]: rule for rule in subject["rules"]} for subject in (old, new)]
    for rule in dict.fromkeys([*rules[0], *rules[1]]):
        absent = {"status": "untried", "worst": None, "worst_wide": None}
        kind, text = rule_change(rules[0].get(rule, absent), rules[1].get(rule, absent), same)
        if kind:
            found.append(Change(kind, name, rule, text))
    return found


def rule_change(old: Content, new: Content, same: bool) -> tuple[str, str]:
    """("", "") for none."""
    status = old["status"], new["status"]
    if status == ("untried", "violated") or status == ("conforms", "violated"):
        return "worse", f"violated now, {described(new)}"
    if status[0] == "violated" and status[1] == "conforms":
        return "better", f"repaired, {described(new)}"
    if status[1] == "untried" != status[0]:
        return "worse", f"tried no longer; it was {status[0]}"
    if status == ("untried", "conforms"):
        return "other", f"tried now, {described(new)}"
    return ratio_change(old, new, same)


def ratio_change(old: Content, new: Content, same: bool) -> tuple[str, str]:
    """The larger of two changes: of the worst in float32 and float64, and of the worst of all dtypes."""
    factors = [factor(real(old[name]), real(new[name])) for name in ("worst_wide", "worst")]
    largest = max(factors, key=lambda one: abs(math.log(one)) if one > 0 else math.inf)
    if 1 / FACTOR <= largest <= FACTOR:
        return "", ""
    kind = "better" if largest < 1 else "worse"
    text = f"{described(old)} -> {described(new)}"
    return (kind, text) if same else ("other", f"{text}, on other cases")


def factor(old: float, new: float) -> float:
    """new / old; 1 where there is nothing to compare."""
    if math.isnan(old) or math.isnan(new) or old == new:
        return 1.0
    return math.inf if old == 0 or math.isinf(new) else new / old


def described(rule: Content) -> str:
    worst, wide = real(rule["worst"]), real(rule["worst_wide"])
    if math.isnan(worst):
        return "not tried"
    if math.isinf(worst):
        return "worst error beyond any bound"
    narrow = "" if math.isnan(wide) else f" ({wide:.3g} in float32 and float64)"
    return f"worst error {worst:.3g} of its bound{narrow}"
