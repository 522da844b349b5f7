"""Which positions of a sequence, and which experts, each of several ranks holds (DIST-1 to DIST-7).

A rank has a part of the queries, and a part of the keys with their values. In both layouts its part is made of pieces,
runs of consecutive positions:

    contiguous      one piece a rank, in the order of ranks
    zigzag          the whole is cut into 2 R pieces for R ranks; rank i has pieces i and 2 R - 1 - i

Under a causal mask the last rank of a contiguous layout has the most work, and the first nearly none. In zigzag, each
rank has an early and a late piece, and all have about the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from specification.checks.arguments import natural, one_of, refuse

__all__ = ["shard_positions"]

LAYOUTS = ("contiguous", "zigzag")

Pieces = tuple[tuple[int, int], ...]
"""(start, stop) of each piece, in the order in which a rank holds them."""


def shard_positions(length: int, ranks: int, rank: int, layout: str = "contiguous") -> np.ndarray:
    """Return the positions of the whole that a rank holds, in the order in which it holds them (DIST-3).

    `array[:, :, shard_positions(...)]` cuts a rank's part out of a whole one. Written to the same positions, the parts
    of all ranks are the whole again. The sizes of the pieces are those of `numpy.array_split`, so any length will do;
    a length below the number of ranks leaves some of them without positions.

    Args:
        length: Of the whole, at least 0.
        ranks: How many there are, at least 1.
        rank: Whose positions, from 0 to ranks - 1.
        layout: "contiguous" or "zigzag".

    Returns:
        An integer array [T_local].

    Raises:
        TypeError: A number that is no integer.
        ValueError: A number out of its range, or an unknown layout.
    """
    one_of("layout", layout, LAYOUTS)
    natural("length", length)
    if natural("rank", rank) >= natural("ranks", ranks, least=1):
        refuse("rank", f"be below {ranks}, the number of ranks", rank)
    return np.concatenate([np.arange(*piece) for piece in even_pieces(length, ranks, layout)[rank]])


def even_pieces(length: int, ranks: int, layout: str) -> list[Pieces]:
    """The pieces of every rank, for sizes as those of `numpy.array_split`."""
    count = 2 * ranks if layout == "zigzag" else ranks
    short, more = divmod(length, count)
    edges = [short * i + min(i, more) for i in range(count + 1)]
    pieces = list(pairwise(edges))
    if layout == "zigzag":
        return [(pieces[i], pieces[count - 1 - i]) for i in range(ranks)]
    return [(piece,) for piece in pieces]


def pieces_of_lengths(name: str, lengths: Sequence[int], layout: str) -> list[Pieces]:
    """The pieces of every rank, where the ranks hold so many positions of an array; any in a contiguous layout."""
    if layout == "contiguous":
        return [(piece,) for piece in pairwise(accumulate(lengths, initial=0))]
    pieces = even_pieces(sum(lengths), len(lengths), layout)
    expected = [sum(stop - start for start, stop in of_rank) for of_rank in pieces]
    if expected != list(lengths):
        refuse(f"the lengths of {name}", f"be {expected} on the ranks of a zigzag layout", list(lengths))
    return pieces


def ranges_of_experts(counts: Sequence[int], experts: int) -> list[tuple[int, int]]:
    """The experts (first, stop) of every rank, where the ranks hold so many of them (DIST-6)."""
    if sum(counts) != experts:
        refuse("experts", f"be {experts} on all ranks together, for as many columns of router.weight", list(counts))
    return list(pairwise(accumulate(counts, initial=0)))
