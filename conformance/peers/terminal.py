"""The divergence matrix for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.checks.catalogue import REFUSAL
from conformance.judge.judged_rules import JUDGED
from conformance.peers import cells
from conformance.peers.matrix import PeerReport

STYLES = {cells.CONFORMS: "green", cells.VIOLATED: "bold red", cells.ACCEPTS: "yellow", cells.NOT_ASKED: "dim"}


def as_table(reports: Sequence[PeerReport]) -> RenderableType:
    """One table for each operation, and below it every divergence with its smallest case."""
    parts: list[RenderableType] = []
    for operation, title in cells.OPERATIONS.items():
        chosen = [report for report in reports if report.operation == operation]
        if chosen:
            parts += [table(chosen, title), *(divergences(report) for report in chosen)]
    legend = [Text.assemble(sign(state), f" {meaning}") for state, meaning in cells.LEGEND.items()]
    told = ", ".join(f"{name} {version}" for name, version in cells.versions(reports).items())
    return Group(*parts, *legend, Text(told, style="dim"))


def table(reports: Sequence[PeerReport], title: str) -> Table:
    """Rows are peers, columns rules, their names written downwards in two lines."""
    rules = cells.rules_asked(reports)
    made = Table(title=title, title_justify="left", padding=(0, 0), collapse_padding=True)
    made.add_column("")
    for rule in rules:
        made.add_column(rule.replace("-", "\n"), justify="center")
    for report in reports:
        made.add_row(Text(report.subject), *(sign(cells.state(report, rule)) for rule in rules))
    return made


def sign(state: str) -> Text:
    return Text(cells.SIGNS[state], style=STYLES[state])


def divergences(report: PeerReport) -> RenderableType:
    found = Text()
    for violation in report.violations:
        if violation.check == REFUSAL:
            continue
        rule, remark = violation.rule, cells.remark(report, violation.rule)
        found.append(f"{report.subject} breaks {rule} ({JUDGED[rule].title}): ", style="bold red")
        found.append(cells.seen(violation) + (f" ({remark})" if remark else "") + "\n")
        found.append(f"  {cells.asked(violation)}\n", style="dim")
    if cells.accepted(report):
        found.append(f"{report.subject} takes what should be refused: ", style="yellow")
        found.append(cells.accepted(report) + "\n")
    if report.untried:
        found.append(f"{report.subject}: {report.untried}\n", style="red")
    return found
