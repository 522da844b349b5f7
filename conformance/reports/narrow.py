"""Tables of named rows on a terminal that is too narrow for them: every name on a line of its own, and whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from conformance.reports.markdown import plain

INDENT, BETWEEN, FRAME, LEAST = 2, 2, 4, 8
"""Columns before a row's cells and between them; those of the frame; those of a cell that may be folded, at least."""


def fitting(table: Table, console: Console) -> Table:
    """Return the table if it fits, or else one with the cells of each row below its name, the first cell."""
    whole = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    if whole <= console.width:
        return table
    names, *others = table.columns
    widths = widths_of(others, console.width - FRAME - INDENT)
    narrow = Table(title=table.title)
    narrow.add_column(stack_cells(names.header, [column.header for column in others], others, widths))
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    for row, (name, *cells) in zip(table.rows, rows, strict=True):
        narrow.add_row(stack_cells(name, cells, others, widths), end_section=row.end_section)
    return narrow


def widths_of(columns: Sequence[Column], room: int) -> list[int]:
    """Each column's width; those that may be folded share what the others leave."""
    natural = [max(cell_len(plain(cell)) for cell in (column.header, *column.cells)) for column in columns]
    left = room - BETWEEN * (len(columns) - 1) - sum(natural)
    widths = []
    for column, width in zip(columns, natural, strict=True):
        less = 0 if column.no_wrap or left >= 0 else min(-left, max(width - LEAST, 0))
        widths.append(width - less)
        left += less
    return widths


def stack_cells(
    name: RenderableType, cells: Sequence[RenderableType], columns: Sequence[Column], widths: Sequence[int]
) -> Group:
    grid = Table.grid(padding=(0, BETWEEN, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(justify=column.justify, width=width, overflow=column.overflow, no_wrap=column.no_wrap)
    grid.add_row(*cells)
    return Group(Text(str(name), overflow="fold"), Padding(grid, (0, 0, 0, INDENT)))
