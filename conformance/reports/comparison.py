"""Comparison of two reports: rules, error ratios, versions and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.checks.levels import STRICT
from conformance.reports.change import Change, rule_change
from conformance.reports.content import SCHEMA, Content

READ = (1, 2, 3, 4, 5)
"""Versions of the schema that this file reads. The first two have no levels."""
CIRCUMSTANCES = ("project", "seed", "effort", "cases_per_probe", "runs")
DRAWN_BY = ("numpy", "hypothesis")
"""Packages whose version decides which cases a seed generates."""


def read_report(path: Path) -> Content:
    """Read a report; raise ValueError if the file is not one, or has another version of the schema."""
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
    lines = [f"{name}: {before[name]} -> {after[name]}" for name in CIRCUMSTANCES if before[name] != after[name]]
    olds, news = all_versions(before), all_versions(after)
    pairs = {name: (olds.get(name), news.get(name)) for name in olds | news}
    return lines + [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new]


def all_versions(report: Content) -> dict[str, Any]:
    """Return the versions of the format and of the packages."""
    return {"format of the report": report["schema"]["version"]} | report["versions"]


def changes(before: Content, after: Content) -> list[Change]:
    """Return every change, rule by rule. A larger ratio is worse only if both runs generated the same cases."""
    found = []
    same_cases = all(before[name] == after[name] for name in CIRCUMSTANCES)
    same_cases &= all(before["versions"].get(name) == after["versions"].get(name) for name in DRAWN_BY)
    if after["error"] is not None and after["error"] != before["error"]:
        found.append(Change("worse", "", "", f"not judged: {after['error']}"))
    for old, new in pairs(before, after):
        if old is None or new is None:
            kind, text = ("worse", "no longer judged") if new is None else ("other", "judged now")
            found.append(Change(kind, (old or new or {})["name"], "", text))
            continue
        same = same_cases and all(old[name] == new[name] for name in ("declaration", "untried"))
        found += subject_changes(old, new, same)
    return found


def pairs(before: Content, after: Content) -> list[tuple[Content | None, Content | None]]:
    """Pair subjects of the same name; if both reports have one subject, pair these whatever their names."""
    if len(before["subjects"]) == len(after["subjects"]) == 1:
        return [(before["subjects"][0], after["subjects"][0])]
    old, new = ({subject["name"]: subject for subject in report["subjects"]} for report in (before, after))
    return [(old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def compare_declarations(old: Content, new: Content) -> list[str]:
    """Return the differences between two declarations, which change the cases and the verdict."""
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
