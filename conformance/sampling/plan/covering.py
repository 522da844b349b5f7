"""Sizes of each dimension, and rows that make every pair (or triple) of their ranges meet where that is affordable.

Sizes are those at which real implementations change their way. Powers of two and their neighbours, where tiles and
vectors begin and end. Widths, head counts and group ratios of models in use. 32,767 and 65,535, where 16-bit indices
end, and the second and third axis of a CUDA grid.

A covering array by greedy choice (Cohen, Dalal, Fredman and Patton, "The AETG system", IEEE Trans. Softw. Eng. 23,
1997), with a constraint. Libraries for it give up pairs where most combinations are forbidden, as here: two large
dimensions leave no room for a third.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations, product

import numpy as np


def neighbouring_sizes(*powers: int) -> tuple[int, ...]:
    """2^n - 1, 2^n and 2^n + 1 for each n."""
    return tuple(2**n + step for n in powers for step in (-1, 0, 1))


LENGTHS = (
    *(3, 5, 7, 12, *neighbouring_sizes(*range(4, 17))),
    *(40, 80, 96, 100, 192, 200, 300, 384, 640, 768, 1000, 1536, 3000),
)
"""Keys; and queries, of which there may be one or two as well."""
WIDTHS = (
    *(1, 2, 3, 5, 8, 12, *neighbouring_sizes(*range(4, 10))),
    *(24, 40, 48, 72, 80, 96, 100, 112, 120, 160, 192, 320, 384, 576),
)
"""Of query and key, and of value. 192 with 128 is DeepSeek's attention, 576 with 512 its absorbed form."""
RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Query heads to a key head."""
KEY_HEADS = (1, 2, 3, 4, 5, 8, *neighbouring_sizes(5, 6, 7), 12, 40, 71, 96)
BATCHES = (1, 2, 3, 5, *neighbouring_sizes(3, 4, 5, 6, 7, 8, 10, 12, 15, 16))
ROWS = (1, 2, 3, 5, 6, 7, 12, *neighbouring_sizes(*range(4, 17)), 40, 48, 50, 100, 300)
"""Of norms, and of all that works on rows."""
NORM_WIDTHS = (
    *(3, 5, 7, 12, *neighbouring_sizes(*range(4, 17))),
    *(40, 100, 320, 576, 768, 1000, 1600, 3072, 5120, 8200, 12288, 20480, 131072),
)
MODEL_WIDTHS = (2, 3, 5, 8, 12, *neighbouring_sizes(*range(4, 15)), 24, 40, 100, 320, 576, 768, 1000, 1600, 3072, 28672)
VOCABULARIES = (5, 11, *neighbouring_sizes(6, 8, 10, 12, 15, 16), 30522, 50257, 100277)
POSITIONS = (5, 12, *neighbouring_sizes(6, 8, 10, 12, 13, 15, 16), 131072)


def classes(values: Iterable[int], *bounds: int) -> tuple[tuple[int, ...], ...]:
    """The values cut into ranges: each but the last ends with a bound. Empty ranges are left out."""
    ordered = sorted(set(values))
    ends = (*bounds, ordered[-1])
    ranges = (tuple(n for n in ordered if low < n <= high) for low, high in zip((0, *bounds), ends, strict=True))
    return tuple(numbers for numbers in ranges if numbers)


Row = dict[str, int]
"""For every dimension a size."""
LevelRow = dict[str, int]
"""For every dimension the number of a level."""
Levels = Mapping[str, Sequence[Sequence[int]]]
"""For every dimension its levels; a level is a range of sizes, the smallest first."""
Fits = Callable[[Row], bool]
"""Whether a row is affordable. A smaller row always is where a larger one is."""

TRIES = 12
"""Rows of which the one that covers most is taken."""


def covering(levels: Levels, fits: Fits, strength: int = 2, before: Iterable[Row] = ()) -> list[LevelRow]:
    """Choose rows of levels in which those of any `strength` dimensions meet. It depends on the arguments alone.

    before: rows in which some meet already.
    """
    rng = np.random.default_rng(0)
    open_tuples, rows = affordable_tuples(levels, fits, strength) - tuples_of_rows(before, levels, strength), []
    while open_tuples:
        tries = (choose_levels(levels, fits, open_tuples, rng) for _ in range(TRIES))
        row, covered = max(tries, key=lambda found: len(found[1]))
        open_tuples -= covered
        rows.append(row)
    return rows


def more_rows(levels: Levels, fits: Fits, before: Iterable[Row], grows: Fits, seed: int) -> list[Row]:
    """Choose rows for the pairs of levels that are affordable, and meet in no row before.

    grows: whether sizes that are not the smallest of their levels are worth it.
    """
    rng = np.random.default_rng(seed)
    unused = {(name, size) for name in levels for level in levels[name] for size in level}
    return [size_row(row, levels, grows, unused, rng) for row in covering(levels, fits, before=before)]


def choose_sizes(
    level_rows: Sequence[LevelRow], levels: Levels, fits: Fits, every: Collection[str], seed: int = 0
) -> list[Row]:
    """Choose a size of each level: one that no row has yet, if there is one. More rows have the three largest sizes of
    each dimension, and all sizes of those in `every`, as far as no row has them yet.
    """
    rng = np.random.default_rng(seed)
    unused = {(name, size) for name in levels for level in levels[name] for size in level}
    largest = {(name, size) for name in levels for size in levels[name][-1][-3:]}
    rows = [size_row(row, levels, fits, unused, rng) for row in level_rows]
    while wanted := {pair for pair in unused if pair in largest or pair[0] in every}:
        rows.append(pack_row(levels, fits, unused, max(wanted, key=lambda pair: (pair[1], pair[0])), rng))
    return rows


def affordable_tuples(levels: Levels, fits: Fits, strength: int) -> set[frozenset[tuple[str, int]]]:
    """Every tuple of (dimension, level) that some affordable row has."""
    return {
        frozenset(zip(names, picked, strict=True))
        for names in combinations(levels, strength)
        for picked in product(*(range(len(levels[name])) for name in names))
        if fits(smallest_with(dict(zip(names, picked, strict=True)), levels))
    }


def tuples_of_rows(rows: Iterable[Row], levels: Levels, strength: int) -> set[frozenset[tuple[str, int]]]:
    """Every tuple of (dimension, level) that some row has."""
    places = {name: {size: number for number, level in enumerate(levels[name]) for size in level} for name in levels}
    numbered = ([(name, places[name][row[name]]) for name in levels] for row in rows)
    return {frozenset(pairs) for row in numbered for pairs in combinations(row, strength)}


def smallest_with(picked: Mapping[str, int], levels: Levels) -> Row:
    """The smallest sizes of the levels picked, and of all others."""
    return {name: levels[name][picked.get(name, 0)][0] for name in levels}


def choose_levels(
    levels: Levels, fits: Fits, open_tuples: set[frozenset[tuple[str, int]]], rng: np.random.Generator
) -> tuple[LevelRow, set[frozenset[tuple[str, int]]]]:
    """(level of every dimension, the open tuples that they cover), from one open tuple on, greedily."""
    ordered = sorted(map(sorted, open_tuples))
    picked = dict(ordered[int(rng.integers(len(ordered)))])
    rest = [name for name in levels if name not in picked]
    for name in rng.permutation(rest):
        options = [
            (len(covered_tuples(picked | {name: level}, open_tuples)), float(rng.random()), level)
            for level in range(len(levels[name]))
            if fits(smallest_with(picked | {name: level}, levels))
        ]
        picked[str(name)] = max(options)[2]
    return picked, covered_tuples(picked, open_tuples)


def covered_tuples(
    picked: Mapping[str, int], open_tuples: set[frozenset[tuple[str, int]]]
) -> set[frozenset[tuple[str, int]]]:
    items = picked.items()
    return {pairs for pairs in open_tuples if pairs <= items}


def size_row(
    level_row: LevelRow, levels: Levels, fits: Fits, unused: set[tuple[str, int]], rng: np.random.Generator
) -> Row:
    """A size for every level: one that no row has yet, if it is affordable, and of the last level the largest."""
    row = smallest_with(level_row, levels)
    for name in map(str, rng.permutation(list(levels))):
        level, last = levels[name][level_row[name]], 0 < level_row[name] == len(levels[name]) - 1
        order = sorted(level, key=lambda size: ((name, size) not in unused, -size if last else rng.random()))
        row[name] = next(size for size in order if size == row[name] or fits(row | {name: size}))
    unused -= set(row.items())
    return row


def pack_row(
    levels: Levels, fits: Fits, unused: set[tuple[str, int]], first: tuple[str, int], rng: np.random.Generator
) -> Row:
    """A row of this size of a dimension, and beside it the largest others that no row has yet and are affordable."""
    row = smallest_with({}, levels) | dict([first])
    for name in map(str, rng.permutation([name for name in levels if name != first[0]])):
        left = sorted((size for other, size in unused if other == name), reverse=True)
        any_of_first = levels[name][0][int(rng.integers(len(levels[name][0])))]
        row[name] = next((size for size in (*left, any_of_first) if fits(row | {name: size})), row[name])
    unused -= set(row.items())
    return row
