"""Weights, log-sum-exp and merging past a size (ATT-14)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import torch_impl
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.thresholds.call import (
    Call,
    Tensor,
    after,
    before,
    each,
    logsumexp,
    more,
    partly,
    weighed,
    with_keys,
    zeroed,
)
from conformance.selftest.faults.thresholds.call import instead as instead_by

WEIGHTS, LOGSUMEXP = "attention_weights", "attention_logsumexp"


def by_first(n: int) -> Callable[[Call], Tensor]:
    """Normalised over the first n keys: the weights of the others are 0."""

    def compute(c: Call) -> Tensor:
        weights = weighed(with_keys(c, slice(0, n)))
        return torch.cat([weights, weights.new_zeros((*weights.shape[:3], c.K - n))], -1)

    return compute


def by_tiles(n: int) -> Callable[[Call], Tensor]:
    """Normalised in every tile of n keys by itself."""

    def compute(c: Call) -> Tensor:
        return torch.cat([weighed(with_keys(c, slice(start, start + n))) for start in range(0, c.K, n)], -1)

    return compute


def in_base_2(c: Call) -> Tensor:
    return logsumexp(c) / math.log(2)


COMPANIONS = (
    *each(
        (64, 1024, 16384, 65535),
        lambda n: instead_by("ATT-14", f"weights past key {n} are 0", more("K", n), by_first(n), operation=WEIGHTS),
    ),
    *each(
        (128, 2048, 32768),
        lambda n: instead_by(
            "ATT-14", f"weights of tiles of {n} keys by themselves", more("K", n), by_tiles(n), operation=WEIGHTS
        ),
    ),
    *each(
        (64, 1024, 32768),
        lambda n: after(
            "ATT-14",
            f"weights of queries past {n} are 0",
            more("Q", n),
            lambda c, weights: zeroed(weights, (slice(None), slice(None), slice(n, None))),
            operation=WEIGHTS,
        ),
    ),
    *each(
        (32, 64),
        lambda n: after(
            "ATT-14",
            f"weights of heads past {n} are the last",
            more("H", n),
            lambda c, weights: weights[:, torch.arange(c.H).clamp(max=n - 1)],
            operation=WEIGHTS,
        ),
    ),
    *each(
        (64, 512, 4096, 32768, 65535),
        lambda n: before(
            "ATT-14",
            f"log-sum-exp without the keys past {n}",
            more("K", n),
            lambda c: with_keys(c, slice(0, n)),
            operation=LOGSUMEXP,
        ),
    ),
    *each(
        (32, 64, 128),
        lambda n: before(
            "ATT-14",
            f"log-sum-exp without the last tile of {n} keys",
            partly("K", n),
            lambda c: with_keys(c, slice(0, c.K // n * n)),
            operation=LOGSUMEXP,
        ),
    ),
    *each(
        (128, 1024, 8192),
        lambda n: instead_by(
            "ATT-14", f"log-sum-exp in base 2 past {n} keys", more("K", n), in_base_2, operation=LOGSUMEXP
        ),
    ),
    *each(
        (64, 1024, 32768),
        lambda n: after(
            "ATT-14",
            f"log-sum-exp of queries past {n} is 0",
            more("Q", n),
            lambda c, found: zeroed(found, (slice(None), slice(None), slice(n, None))),
            operation=LOGSUMEXP,
        ),
    ),
    *each(
        (64, 4096),
        lambda n: after(
            "ATT-14",
            f"log-sum-exp of batch elements past {n} is 0",
            more("B", n),
            lambda c, found: zeroed(found, slice(n, None)),
            operation=LOGSUMEXP,
        ),
    ),
)

# --- merging ----------------------------------------------------------------------------------------------------------

Parts = Sequence[Tensor]
Merged = tuple[Tensor, Tensor]


def merge(outputs: Parts, logsumexps: Parts) -> Merged:
    """torch_impl's."""
    return torch_impl.merge_attention(outputs, logsumexps)


def merging(name: str, when: Callable[[Parts], bool], wrong: Callable[[Parts, Parts], Merged]) -> Fault:
    def function(outputs: Any, logsumexps: Any) -> Merged:
        return wrong(outputs, logsumexps) if when(outputs) else merge(outputs, logsumexps)

    return Fault("ATT-14", name, "merge_attention", function, merge, "torch")


def rows_after(n: int) -> Callable[[Parts, Parts], Merged]:
    """Queries past n get 0."""

    def wrong(outputs: Parts, logsumexps: Parts) -> Merged:
        output, log = merge(outputs, logsumexps)
        return zeroed(output, (slice(None), slice(None), slice(n, None))), log

    return wrong


def columns_after(n: int) -> Callable[[Parts, Parts], Merged]:
    """Columns past n are those of the first part."""

    def wrong(outputs: Parts, logsumexps: Parts) -> Merged:
        output, log = merge(outputs, logsumexps)
        return torch.cat([output[..., :n], outputs[0][..., n:]], -1), log

    return wrong


def heads_after(n: int) -> Callable[[Parts, Parts], Merged]:
    """Heads past n take the log-sum-exps of the last before them."""

    def wrong(outputs: Parts, logsumexps: Parts) -> Merged:
        heads = torch.arange(outputs[0].shape[1]).clamp(max=n - 1)
        return merge(outputs, [log[:, heads] for log in logsumexps])

    return wrong


def parts_up_to(n: int) -> Callable[[Parts, Parts], Merged]:
    return lambda outputs, logsumexps: merge(outputs[:n], logsumexps[:n])


MERGES = (
    *each(
        (64, 1024, 32768), lambda n: merging(f"queries past {n} not merged", lambda o: o[0].shape[2] > n, rows_after(n))
    ),
    *each(
        (64, 128, 256), lambda n: merging(f"columns past {n} not merged", lambda o: o[0].shape[3] > n, columns_after(n))
    ),
    *each(
        (32, 64),
        lambda n: merging(f"log-sum-exps of heads past {n} not read", lambda o: o[0].shape[1] > n, heads_after(n)),
    ),
    *each((8, 16, 32), lambda n: merging(f"parts past {n} left out", lambda o: len(o) > n, parts_up_to(n))),
)

FAULTS: tuple[Fault, ...] = (*COMPANIONS, *MERGES)
