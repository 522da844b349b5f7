"""The divergence matrix for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.peers.rows import (
    ACCEPTS,
    AT_STRICT,
    CONFORMS,
    LEGEND,
    MODEL,
    NOT_ASKED,
    OPERATION_TITLES,
    SIGNS,
    VIOLATED,
    Row,
    State,
    columns,
    describe_accepted,
    kept_profile,
    runs,
    state_in,
)

STYLES: dict[State, str] = {CONFORMS: "green", VIOLATED: "bold red", NOT_ASKED: "dim"}
STYLES |= {AT_STRICT: "yellow", ACCEPTS: "yellow"}


def render_rows(rows: Sequence[Row]) -> RenderableType:
    """One table for each operation, and below it every divergence with its smallest case."""
    parts: list[RenderableType] = []
    for operation, title in OPERATION_TITLES.items():
        chosen = [row for row in rows if row.operation == operation]
        if chosen:
            parts += [table(chosen, title), *(divergences(row) for row in chosen)]
    models = [row for row in rows if row.operation == MODEL]
    parts += [models_table(models), *(divergences(row) for row in models)] if models else []
    legend = [Text.assemble(sign(state), f" {meaning}") for state, meaning in LEGEND.items()]
    return Group(*parts, *legend, *(Text(run.summary, style="dim") for run in runs(rows)))


def table(rows: Sequence[Row], title: str) -> Table:
    """Rows are peers, columns levels and their rules, with names of rules written downwards in two lines."""
    headings = columns(rows)
    made = Table(title=title, title_justify="left", padding=(0, 0), collapse_padding=True)
    for heading in ("", "keeps "):
        made.add_column(heading)
    for column in headings:
        made.add_column(column.replace("-", "\n"), justify="center")
    for row in rows:
        made.add_row(Text(row.path), Text(kept_profile(row)), *(sign(state_in(row, column)) for column in headings))
    return made


def models_table(rows: Sequence[Row]) -> Table:
    made = Table(title="Models", title_justify="left")
    for heading in ("", "dialect", "", "first wrong", "not judged"):
        made.add_column(heading)
    for row in rows:
        steps = ", ".join(dict.fromkeys(one.step for one in row.divergences if one.step))
        state = VIOLATED if row.divergences else CONFORMS
        made.add_row(Text(row.path), Text(row.dialect), sign(state), Text(steps), Text(row.left_out))
    return made


def sign(state: State) -> Text:
    return Text(SIGNS[state], style=STYLES[state])


def divergences(row: Row) -> RenderableType:
    found = Text()
    for rule, title, level, message, call, _ in row.divergences:
        found.append(f"{row.path} breaks {rule} ({title}, {level}): ", style="bold red")
        found.append(f"{message}\n")
        found.append(f"  {call}\n", style="dim")
    if row.accepted:
        found.append(f"{row.path} takes what should be refused: ", style="yellow")
        found.append(describe_accepted(row) + "\n")
    if row.untried:
        found.append(f"{row.path}: {row.untried}\n", style="red")
    return found
