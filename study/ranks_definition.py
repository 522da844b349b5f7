"""Attention over ranks by the definition: `attention` to the keys of each rank, and `merge_attention` of the parts.

Every function takes the whole, and computes what one rank does. Nothing is sent, because everything is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from reference_numpy.attention import attention, attention_logsumexp, merge_attention
from reference_numpy.attention_vjp import attention_logsumexp_vjp, attention_vjp, merge_attention_vjp
from reference_numpy.masks import materialize
from specification.distributed import shard_positions
from specification.masks import Mask


class Ring(NamedTuple):
    mask: Mask | None
    rank: int
    ranks: int
    layout: str


class Pair(NamedTuple):
    """A rank's queries and the keys of one rank, by their positions in the whole, as attention of its own."""

    queries: np.ndarray
    keys: np.ndarray
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray]
    mask: np.ndarray


def ring_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, ring: Ring) -> np.ndarray:
    """Compute a rank's rows of `attention` of the whole, while keys and values travel from rank to rank (DIST-1).

    At each step the rank computes its queries with the keys that it has. Partial results are merged by their
    log-sum-exps (ATT-14).
    """
    own = shard_positions(query.shape[2], ring.ranks, ring.rank, ring.layout)
    output = np.zeros((*query[:, :, own].shape[:3], value.shape[3]), query.dtype)
    logsumexp = np.full(output.shape[:3], -np.inf, query.dtype)
    for pair in pairs(query, key, value, ring):
        found = compute_part(pair)
        merged = merge_attention([output, found[0]], [logsumexp, found[1]])
        for total, part_of_it in zip((output, logsumexp), merged, strict=True):
            total[...] = part_of_it
    return output


def compute_part(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    return attention(*pair.inputs, mask=pair.mask), attention_logsumexp(*pair.inputs[:2], mask=pair.mask)


def ring_backward(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, cotangent: np.ndarray, ring: Ring
) -> list[np.ndarray]:
    """Compute what a rank adds to the gradients of the whole: of its queries, and of every rank's keys and values.

    The definition goes back through merging, and then through each part. The ports compute the weights of all parts
    from one log-sum-exp for each row. They send the sums of gradients around with the keys and values.
    """
    parts = list(pairs(query, key, value, ring))
    outputs, logsumexps = zip(*map(compute_part, parts), strict=True)
    cotangent = cotangent[:, :, parts[0].queries]
    cotangents = merge_attention_vjp(outputs, logsumexps, cotangent, np.zeros_like(logsumexps[0]))
    of_query, of_keys, of_values = sums = [np.zeros_like(array) for array in (query, key, value)]
    for pair, of_output, of_logsumexp in zip(parts, *cotangents, strict=True):
        found = attention_vjp(*pair.inputs, of_output, mask=pair.mask)
        of_scores = attention_logsumexp_vjp(*pair.inputs[:2], of_logsumexp, mask=pair.mask)
        of_query[:, :, pair.queries] += found.query + of_scores.query
        of_keys[:, :, pair.keys] += found.key + of_scores.key
        of_values[:, :, pair.keys] += found.value
    return sums


def pairs(query: np.ndarray, key: np.ndarray, value: np.ndarray, ring: Ring) -> Iterator[Pair]:
    """The pairs of all steps: this rank's queries with its own keys, then with those of each rank before it."""
    allowed = materialize(ring.mask, query.shape[2], key.shape[2])
    rows = shard_positions(query.shape[2], ring.ranks, ring.rank, ring.layout)
    for step in range(ring.ranks):
        here = shard_positions(key.shape[2], ring.ranks, (ring.rank - step) % ring.ranks, ring.layout)
        inputs = query[:, :, rows], key[:, :, here], value[:, :, here]
        yield Pair(rows, here, inputs, allowed[:, :, rows[:, None], here])


def head_parallel_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, ring: Ring) -> np.ndarray:
    """Compute a rank's rows of `attention` of the whole, by whole rows of H / R heads on each rank (DIST-1)."""
    share = query.shape[1] // key.shape[1]
    key, value = (np.repeat(array, share, axis=1) for array in (key, value))
    heads = [np.split(array, ring.ranks, axis=1) for array in (query, key, value)]
    rows = np.concatenate([attention(*of_rank, mask=ring.mask) for of_rank in zip(*heads, strict=True)], axis=1)
    return rows[:, :, shard_positions(query.shape[2], ring.ranks, ring.rank, ring.layout)]
