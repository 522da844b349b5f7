"""The work that a case leaves: floating-point operations of the allowed pairs, and bytes that must move at least.

Attention, for every allowed pair of a query and a key: 2 (D + V) forward (the score, and the weighted value); backward
2 (3 D + 2 V) more (the score once more, the gradients of weight, value, query and key). With V = D that is 4 D, and 2.5
times as much. Exponentials and what a kernel computes for pairs that the mask forbids are not counted. Who keeps the
scores need not compute them again: what is impossible is told by `least_flops`, which has them once.

A mixture of experts, for every token and each of its experts: 6 D F, forward.

Every input that any result depends on is read once, and every result written once. Layer norm is counted in bytes only;
of a mixture the experts of one token are, as no call reads fewer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.timing.timed_case import Case, blocks_of_rows, mask
from reference_numpy.masks import allowed_pairs


class Work(NamedTuple):
    """flops is None where operations are not what the case is about; least_flops cannot be done without."""

    pairs: int | None
    flops: int | None
    least_flops: int | None
    bytes: int


def count_pairs(case: Case, description: Any) -> tuple[int, int, int]:
    """Return the allowed pairs over all batch elements and heads; queries and keys (of one head) that are in one.

    By blocks of queries: the whole mask need not stand in memory.
    """
    if description is None:
        return case.B * case.H * case.Q * case.K, case.B * case.Q, case.B * case.K
    pairs = queries = 0
    seen = np.zeros((case.B, case.H, case.K), bool)
    for rows in blocks_of_rows(case):
        allowed = allowed_pairs(description, case.Q, case.K, rows)
        full = np.broadcast_to(allowed, (*allowed.shape[:2], rows.stop - rows.start, case.K))
        copies = case.B // full.shape[0] * (case.H // full.shape[1])
        pairs += int(np.count_nonzero(full)) * copies
        queries += int(np.count_nonzero(full.any(axis=(1, 3)))) * (case.B // full.shape[0])
        seen |= full.any(axis=2)
    return pairs, queries, int(np.count_nonzero(seen.any(axis=1)))


def work(case: Case, seed: int) -> Work:
    if case.operation == "layer_norm":
        arrays = [int(np.prod(shape)) for shape in case.shapes.values()]  # read: the inputs, and the cotangent
        written = arrays[0] + (arrays[0] + 2 * case.D if case.backward else 0)
        return Work(None, None, None, (sum(arrays) + written) * case.itemsize)
    if case.operation == "mixture_of_experts":
        tokens = case.B * case.Q
        flops = 6 * tokens * case.chosen * case.D * case.F
        return Work(None, flops, flops, (2 * tokens * case.D + 3 * case.chosen * case.D * case.F) * case.itemsize)
    pairs, queries, keys = count_pairs(case, mask(case, seed))
    D, V = case.D, case.V
    flops = 2 * pairs * (D + V + (3 * D + 2 * V if case.backward else 0))
    least = flops - 2 * pairs * D if case.backward else flops
    read = queries * case.H * D + keys * case.G * (D + V)
    written = case.B * case.H * case.Q * V
    if case.backward:
        read += queries * case.H * V
        written += case.B * case.H * case.Q * D + case.B * case.G * case.K * (D + V)
    return Work(pairs, flops, least, (read + written) * case.itemsize)
