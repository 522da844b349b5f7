"""A report as one self-contained HTML page: a row for each rule, a column for each subject.

The causes of violations follow in the order of the terminal. Every row of rules opens to its
statement. Nothing needs JavaScript.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from conformance.reports import blocks
from conformance.reports.comparison import describe_worst
from conformance.reports.content import Content, real
from conformance.reports.pictures import pictures

HERE = Path(__file__).parent


def page(report: Content) -> str:
    """Return the page. Everything from the report is escaped, because names and messages may hold markup."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((HERE / "page.html").read_text())
    style = Markup((HERE / "page.css").read_text())  # our own file; nothing from the report goes in here
    names = [subject["name"] for subject in report["subjects"] if not subject["peer"]]
    helpers: dict[str, Any] = {"pictures": pictures, "ratio": ratio, "real": real, "status": status, "facts": facts}
    helpers |= {"blocks": blocks, "describe_worst": describe_worst, "verdict": verdict(report), "rows": matrix(report)}
    title = ", ".join(names) or f"conformance {report['command']}"
    return template.render(report=report, style=style, title=title, **helpers)


SHOWN = ("breaks", "evidence", "or", "when", "pattern", "sizes", "declare", "replay")
"""Facts about a cause that stand under its numbers, by the labels of `blocks.rows`."""


def facts(cause: Content, subject: Content) -> list[tuple[str, str]]:
    """Return the facts about a cause that its numbers and pictures do not show."""
    label, found = "", []
    for name, text in blocks.rows(cause, subject):
        label = name or label
        if label in SHOWN:
            found.append((name, text))
    return found


def matrix(report: Content) -> list[dict[str, Any]]:
    """Return for every rule a cell for each subject; its rule is None if it does not concern the subject."""
    found: dict[str, dict[str, Any]] = {}
    for number, subject in enumerate(report["subjects"]):
        for rule in subject["rules"]:
            cells = [{"subject": one, "rule": None} for one in report["subjects"]]
            row = found.setdefault(rule["rule"], {"cells": cells})
            row["rule"] = row["cells"][number]["rule"] = rule
    return [*found.values()]


def status(cell: dict[str, Any]) -> str:
    """Return the status of a cell; "beyond" where the profile does not ask for what is violated."""
    if cell["rule"] is None:
        return "untried"
    return "beyond" if blocks.exceeds_profile(cell["rule"], cell["subject"]) else str(cell["rule"]["status"])


def verdict(report: Content) -> str:
    if report["error"] is not None:
        return "Not judged to the end" if report["subjects"] else "Not judged"
    if report["conforms"]:
        return "Conforms"
    ours = [subject for subject in report["subjects"] if not subject["peer"]]
    count = sum(blocks.count_violated_rules(subject) for subject in ours)
    return f"{count} rule{'s' * (count > 1)} violated" if count else "Not judged in full"


def ratio(rule: Content | None) -> str:
    if rule is None or rule["status"] == "untried":
        return "\N{EN DASH}"
    worst = real(rule["worst"])
    if rule["status"] == "violated":
        return "violated" if not math.isfinite(worst) or worst <= 1 else f"{worst:.3g}\N{MULTIPLICATION SIGN}"
    if blocks.refuses_all(rule):
        return "refused"
    return "exact" if worst == 0 else f"{worst:.2f}"
