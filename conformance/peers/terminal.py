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

STYLES = {cells.CONFORMS: "green", cells.VIOLATED: "bold red", cells.NOT_ASKED: "dim"}
STYLES |= {cells.AT_STRICT: "yellow", cells.ACCEPTS: "yellow"}


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
    """Rows are peers, columns levels and their rules, with names of rules written downwards in two lines."""
    columns = cells.columns(reports)
    made = Table(title=title, title_justify="left", padding=(0, 0), collapse_padding=True)
    for heading in ("", "keeps "):
        made.add_column(heading)
    for column in columns:
        made.add_column(column.replace("-", "\n"), justify="center")
    for report in reports:
        signs = (sign(cells.cell(report, column)) for column in columns)
        made.add_row(Text(report.subject), Text(cells.kept_by(report)), *signs)
    return made


def sign(state: str) -> Text:
    return Text(cells.SIGNS[state], style=STYLES[state])


def divergences(report: PeerReport) -> RenderableType:
    found = Text()
    for violation in report.violations:
        if violation.check == REFUSAL:
            continue
        rule, remark = violation.rule, cells.remark(report, violation.rule)
        found.append(f"{report.subject} breaks {rule} ({JUDGED[rule].title}, {violation.level}): ", style="bold red")
        found.append(cells.seen(violation) + (f" ({remark})" if remark else "") + "\n")
        found.append(f"  {cells.asked(violation)}\n", style="dim")
    if cells.accepted(report):
        found.append(f"{report.subject} takes what should be refused: ", style="yellow")
        found.append(cells.accepted(report) + "\n")
    if report.untried:
        found.append(f"{report.subject}: {report.untried}\n", style="red")
    return found
