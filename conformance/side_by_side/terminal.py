"""The columns on a terminal: as many side by side as fit its width, and the others below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from conformance.side_by_side.columns import Columns, Row, side_by_side
from conformance.side_by_side.drift import reason
from conformance.side_by_side.marking import Piece, mark_differences
from conformance.side_by_side.operations import Found
from conformance.side_by_side.rules import rule_texts
from conformance.side_by_side.sources import LABELS, PACKAGES, Step

STYLES = {
    "keyword": "magenta", "string": "green", "number": "cyan", "builtin": "yellow", "function": "bold",
    "decorator": "yellow", "comment": "italic", "": "",
}  # fmt: skip
DIFFERS = "reverse"
NARROWEST = 44
"""Characters of a column at least."""


def count_columns(width: int) -> int:
    """How many columns stand beside each other."""
    return max(1, min(len(PACKAGES), width // NARROWEST))


def render_meaning(found: Found, width: int, head: bool = False) -> Iterator[RenderableType]:
    """The rules in short, and then every function; a single rule at length."""
    yield Rule(found.title, align="left")
    if len(found.rules) == 1:
        text = rule_texts()[found.rules[0]]
        yield Text(f"{text.id} {text.title}: {text.statement}", style="bold")
        yield Markdown(text.text)
        if text.why:
            yield Markdown(f"Why: {text.why}")
    else:
        for rule in found.rules:
            yield Text.assemble((rule, "bold"), " ", rule_texts()[rule].statement)
    if count_columns(width) < len(PACKAGES) and found.functions:
        yield Text(f"A terminal of {NARROWEST * len(PACKAGES)} columns or more shows all three side by side.")
    for file, name in found.functions:
        yield from function(side_by_side(file, name), count_columns(width), head)


def function(columns: Columns, count: int, head: bool) -> Iterator[RenderableType]:
    """One function in tables of that many columns. What differs is marked against all three, also in a narrow table."""
    present = [i for i, one in enumerate(columns.functions) if one is not None]
    rows = [*(columns.head if head else ()), *columns.body]
    yield Text()
    yield Text(f"{columns.name}", style="bold underline")
    for start in range(0, len(present), count):
        yield table(columns, rows, present[start : start + count])


def table(columns: Columns, rows: Sequence[Row], chosen: Sequence[int]) -> Table:
    made = Table(expand=True, show_lines=False, pad_edge=False, header_style="bold", box=None, padding=(0, 1))
    for i in chosen:
        one = columns.functions[i]
        made.add_column(f"{LABELS[PACKAGES[i]]}  {PACKAGES[i]}/{columns.file}:{one.line if one else 0}", ratio=1)
    told = None
    for row in rows:
        if any(row.steps[i] is not None for i in chosen):
            pieces = mark_differences([None if step is None else step.text for step in row.steps])
            because = reason(columns, row)
            cells = [cell(row.steps[i], pieces[i], because if because != told else None) for i in chosen]
            made.add_row(*cells)
            told = because
    return made


def cell(step: Step | None, pieces: Sequence[Piece], because: str | None) -> Text:
    """A step with what its comments say above it; where there is none, why not."""
    if step is None:
        return Text(f"({because})" if because else "", style="dim italic")
    text = Text()
    for note in step.notes:
        text.append(f"# {note}\n", style="italic green")
    indent = "  " * step.depth
    text.append(indent)
    for piece in pieces:
        style = f"{STYLES[piece.kind]} {DIFFERS if piece.differs else ''}".strip()
        text.append(piece.text.replace("\n", f"\n{indent}"), style=style)
    return text
