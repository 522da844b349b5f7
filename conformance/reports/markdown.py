"""Tables as Markdown."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def format_markdown(table: Table) -> str:
    columns = [[plain(cell) for cell in column.cells] for column in table.columns]
    headings = [plain(column.header) for column in table.columns]
    rules = ["--:" if column.justify == "right" else "---" for column in table.columns]
    return "\n".join(row(*texts) for texts in (headings, rules, *zip(*columns, strict=True)))


def row(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
