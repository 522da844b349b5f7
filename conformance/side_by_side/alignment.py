"""Alignment of two or three sequences: as many pairs of equal items as possible without crossing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def pairs(left: Sequence[Item], right: Sequence[Item], score: Callable[[Item, Item], float]) -> list[tuple[int, int]]:
    """Indices of items that stand beside each other: in order, with the largest sum of scores; 0 is no pair."""
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    values = [[score(one, other) for other in right] for one in left]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            together = values[i][j] + best[i + 1][j + 1] if values[i][j] > 0 else 0.0
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if values[i][j] > 0 and best[i][j] == values[i][j] + best[i + 1][j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def rows(columns: Sequence[Sequence[Item]], score: Callable[[Item, Item], float]) -> list[list[Item | None]]:
    """Items of all columns in rows, each column in its own order; None where a column has nothing beside the others.

    Columns are added one by one; an item is compared with each item that a row holds already.
    """
    table: list[list[Item | None]] = [[item] for item in columns[0]]
    for number, column in enumerate(columns[1:], start=1):
        table = insert_column(table, column, number, score)
    return table


def insert_column(
    table: list[list[Item | None]], column: Sequence[Item], number: int, score: Callable[[Item, Item], float]
) -> list[list[Item | None]]:
    """The rows with one more column, which is the one of that number."""

    def likeness(i: int, j: int) -> float:
        return max((score(item, column[j]) for item in table[i] if item is not None), default=0.0)

    merged: list[list[Item | None]] = []
    above, before = 0, 0
    for i, j in [*pairs(range(len(table)), range(len(column)), likeness), (len(table), len(column))]:
        merged += [[*row, None] for row in table[above:i]]
        merged += [[*[None] * number, item] for item in column[before:j]]
        if i < len(table):
            merged.append([*table[i], column[j]])
        above, before = i + 1, j + 1
    return merged
