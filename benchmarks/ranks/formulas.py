"""The ways to compute attention over ranks, and the bytes that they send."""

from __future__ import annotations

from typing import NamedTuple

from conformance.timing.timed_case import Case
from specification.distributed import even_pieces


class Way(NamedTuple):
    """A function that `torch_impl.distributed` has, and which positions a rank holds."""

    function: str
    layout: str = "contiguous"


ONE, RING, HEADS = "attention", "ring_attention", "head_parallel_attention"
BASE = "one process"
WAYS = {
    BASE: Way(ONE),
    "ring, contiguous": Way(RING),
    "ring, zigzag": Way(RING, "zigzag"),
    "head-parallel": Way(HEADS),
}


def rank_lengths(length: int, ranks: int, layout: str) -> list[int]:
    return [sum(stop - start for start, stop in pieces) for pieces in even_pieces(length, ranks, layout)]


def bytes_sent(case: Case, way: Way, ranks: int) -> list[tuple[int, int]]:
    """Return the bytes that each rank sends in the forward and in the backward pass.

    These are the formulas in the docstrings of `torch_impl.distributed`, for as many queries as keys.
    """
    B, H, G, T, D, V, R = case.B, case.H, case.G, case.K, case.D, case.V, ranks
    n, lengths = case.itemsize, rank_lengths(T, R, way.layout)
    w = max(n, 4)
    if R == 1:
        return [(0, 0)]
    if way.function == RING:
        forward = [B * G * (D + V) * n * (T - lengths[(rank + 1) % R]) for rank in range(R)]
        return [(sent, sent + B * G * (D + V) * w * T) for sent in forward]
    count, share = H // R, H // G
    read = [-(-count * (rank + 1) // share) - count * rank // share for rank in range(R)]
    wide = n if sum(read) == G else w
    found = []
    for own, heads in zip(lengths, read, strict=True):
        others = T - own
        rows, columns = B * own * H * (R - 1) // R, B * own * (D + V) * (sum(read) - heads)
        gradients = wide * B * others * (D * count + (D + V) * heads)
        found.append((n * (rows * D + columns + B * V * count * others), gradients + n * rows * V))
    return found
