"""A case of attention on several ranks: which part each has, the whole from all parts, and its error bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from specification.distributed import even_pieces, shard_positions

FUNCTIONS = {"sequence": "ring_attention", "heads": "head_parallel_attention"}


@dataclass(frozen=True)
class Call:
    """A case on some ranks. lengths: queries and keys of each rank, where they are not even."""

    case: Case
    ranks: int
    shard: str = "sequence"
    layout: str = "contiguous"
    engine: str = "auto"
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    one_row: bool = False  # the bias of the case is the same for all queries, and passed as one row
    fault: str = ""

    def positions(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the queries and of the keys that a rank holds."""
        Q, K = self.case.inputs["query"].shape[2], self.case.inputs["key"].shape[2]
        if self.lengths is None:
            return tuple(shard_positions(n, self.ranks, rank, self.layout) for n in (Q, K))  # type: ignore
        return tuple(np.arange(sum(n[:rank]), sum(n[: rank + 1])) for n in self.lengths)  # type: ignore[return-value]


def join(call: Call, of_ranks: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The whole's results from those of all ranks. What every rank has must be the same on each."""
    case, joined = call.case, {}
    places = {"output": 0, gradient_name("query"): 0, gradient_name("key"): 1, gradient_name("value"): 1}
    for name in [*(name for name in of_ranks[0] if name != "counts")]:
        first = of_ranks[0][name]
        if name in places or (name == gradient_name("bias") and not call.one_row):
            axis = 2 if name in places else -2
            length = case.inputs["query" if places.get(name, 0) == 0 else "key"].shape[2]
            whole = np.zeros_like(first, shape=(*first.shape[:axis], length, *first.shape[axis:][1:]))
            for rank, results in enumerate(of_ranks):
                index = call.positions(rank)[places.get(name, 0)]
                whole[(..., index, slice(None)) if axis == -2 else (slice(None), slice(None), index)] = results[name]
            joined[name] = whole
        else:
            for results in of_ranks:
                np.testing.assert_array_equal(results[name], first)
            joined[name] = first
    return joined


def merged_case(call: Call) -> Case:
    """The case with what a ring declares: it merges so many parts by log-sum-exps, and saves one for each row."""
    if call.shard == "heads":
        return call.case
    parts = call.ranks * len(even_pieces(0, 1, call.layout)[0])
    return replace(call.case, rounding={"saved": "logsumexp", "merging": "logsumexp", "parts": str(parts)})
