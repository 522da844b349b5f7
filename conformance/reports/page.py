"""A report as one HTML page that needs nothing else: a row for each rule, a column for each subject.

Every row opens to its evidence, without JavaScript; rows with violations are open from the start.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from conformance.reports.blocks import digits, error, follow, never_given, only_refused, rules_not_tried, where
from conformance.reports.comparison import described
from conformance.reports.content import Content, real
from conformance.reports.pictures import pictures

HERE = Path(__file__).parent


def page(report: Content) -> str:
    """Everything from the report is escaped: names and messages are anybody's."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((HERE / "page.html").read_text())
    style = Markup((HERE / "page.css").read_text())  # our own file, and no place for anything from the report
    names = [subject["name"] for subject in report["subjects"] if not subject["peer"]]
    helpers: dict[str, Any] = {"pictures": pictures, "digits": digits, "error": error, "where": where, "ratio": ratio}
    helpers |= {"never_given": never_given, "not_tried": rules_not_tried, "follow": follow}
    helpers |= {"described": described, "title": ", ".join(names) or f"conformance {report['command']}"}
    return template.render(report=report, style=style, rows=matrix(report), verdict=verdict(report), **helpers)


def matrix(report: Content) -> list[dict[str, Any]]:
    """For every rule: a cell for each subject, with its violations; None where the rule does not speak of it."""
    listed = [{rule["rule"]: rule for rule in subject["rules"]} for subject in report["subjects"]]
    known = {rule: content for one in listed for rule, content in one.items()}
    rows = []
    for name, rule in known.items():
        cells = []
        for subject, one in zip(report["subjects"], listed, strict=True):
            violations = [violation for violation in subject["violations"] if violation["rule"] == name]
            cells.append({"subject": subject, "rule": one.get(name), "violations": violations})
        rows.append({"rule": rule, "cells": cells, "violated": any(status(c) == "violated" for c in cells)})
    return rows


def status(cell: dict[str, Any]) -> str:
    return "untried" if cell["rule"] is None else cell["rule"]["status"]


def verdict(report: Content) -> str:
    if report["error"] is not None:
        return "Not judged"
    if report["conforms"]:
        return "Conforms"
    count = sum(len(subject["violations"]) for subject in report["subjects"] if not subject["peer"])
    if count == 0:
        return "Not everything was tried"
    return f"{count} rule{'s' * (count > 1)} violated"


def ratio(rule: Content | None) -> str:
    """What stands in a cell of the matrix."""
    if rule is None or rule["status"] == "untried":
        return "\N{EN DASH}"
    worst = real(rule["worst"])
    if rule["status"] == "violated":
        return "violated" if not math.isfinite(worst) or worst <= 1 else f"{worst:.3g}\N{MULTIPLICATION SIGN}"
    if only_refused(rule):
        return "refused"
    return "exact" if worst == 0 else f"{worst:.2f}"
