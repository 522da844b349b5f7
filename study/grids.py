"""Terminal tables as plain cells for a page; and points in time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from rich.table import Table
from rich.text import Text


class Grid(NamedTuple):
    """strong: whether a row stands out."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: tuple[bool, ...]


def grid(table: Table) -> Grid:
    columns = [[plain(cell) for cell in column.cells] for column in table.columns]
    headings = tuple(plain(column.header) for column in table.columns)
    strong = tuple("bold" in str(row.style) for row in table.rows)
    return Grid(plain(table.title or ""), headings, tuple(zip(*columns, strict=True)), strong)


def plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def moment(written: str) -> str:
    """A time as results have it, to the minute."""
    return datetime.fromisoformat(written).astimezone(UTC).strftime("%Y-%m-%d, %H:%M UTC")
