"""What several ranks compute together wrongly: parts of the sequence in a ring, or of the heads (DIST-1 to DIST-3).

A case says how many ranks there are, and what they have a part of. Without ranks none of these shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.mistakes.attention_steps import AttentionSteps, places_of
from conformance.mistakes.call import Call, Results
from conformance.mistakes.condition import Condition
from conformance.mistakes.masks import see_pairs
from conformance.mistakes.mistake import Topic
from specification.distributed import shard_positions


class Holder(NamedTuple):
    """Who holds each position of a length, and as which one of its own. sizes: of every rank."""

    rank: np.ndarray
    local: np.ndarray
    sizes: np.ndarray

    @classmethod
    def locate(cls, length: int, ranks: int, shard: str) -> Holder:
        layout = "zigzag" if shard == "zigzag" else "contiguous"
        parts = [shard_positions(length, ranks, rank, layout) for rank in range(ranks)]
        rank, local = np.zeros(length, int), np.zeros(length, int)
        for number, part in enumerate(parts):
            rank[part], local[part] = number, np.arange(len(part))
        return cls(rank, local, np.array([len(part) for part in parts]))

    def find_counterparts(self, taken: np.ndarray) -> np.ndarray:
        """The positions in the same place on other ranks; the own one where that rank has fewer."""
        order = np.lexsort((self.local, self.rank))  # positions, rank by rank
        start = np.cumsum(self.sizes) - self.sizes
        fits = self.sizes[taken] == self.sizes[self.rank]
        return np.where(fits, order[np.minimum(start[taken] + self.local, len(order) - 1)], np.arange(len(self.rank)))


class Spread(NamedTuple):
    """A call on ranks. queries, keys: who holds them."""

    ranks: int
    shard: str
    queries: Holder
    keys: Holder

    @property
    def hops(self) -> np.ndarray:
        """[Q, K]: after how many hops of a ring the keys are there."""
        return (self.queries.rank[:, None] - self.keys.rank) % self.ranks


def limit_to_sequence(change: Callable[..., Any]) -> Callable[..., Any]:
    """Take `change(call, spread, **values)` for calls whose ranks have parts of the sequence."""
    return limit_to_ranks(change, ("sequence", "zigzag"))


def limit_to_ranks(change: Callable[..., Any], shards: tuple[str, ...]) -> Callable[..., Any]:
    def answer(call: Call, **values: object) -> Any:
        shard, ranks = call.case.rounding.get("shard", ""), int(call.case.rounding.get("ranks", 0))
        if shard not in shards or ranks < 2:
            return None
        _, _, Q, K = call.steps.sizes
        return change(call, Spread(ranks, shard, *(Holder.locate(n, ranks, shard) for n in (Q, K))), **values)

    return answer


RANKS = Topic("ranks", "ATT-8", ("attention",))


# --- which keys a rank sees -------------------------------------------------------------------------------------------


SEEN: dict[str, Callable[[Spread], np.ndarray]] = {
    "its own keys alone": lambda s: s.hops == 0,
    "all keys but those of the last rank": lambda s: s.keys.rank < s.ranks - 1,
    "all keys but those of the next rank": lambda s: s.hops < s.ranks - 1,
    "all keys but those of the rank before": lambda s: s.hops != 1,
    "all keys but its own": lambda s: s.hops != 0,
    "no keys of later ranks": lambda s: s.keys.rank <= s.queries.rank[:, None],
    "no key past the shortest part": lambda s: s.keys.local < s.keys.sizes.min(),
}


def see_keys(call: Call, s: Spread, seen: str) -> AttentionSteps | None:
    return see_pairs(call, call.steps.visible & SEEN[seen](s))


TAKEN: dict[str, Callable[[Spread, np.ndarray], np.ndarray]] = {
    "the rank before": lambda s, rank: (rank - 1) % s.ranks,
    "the next rank": lambda s, rank: (rank + 1) % s.ranks,
    "the first rank": lambda s, rank: np.zeros_like(rank),
}


def take_columns(call: Call, s: Spread, taken: str) -> AttentionSteps | None:
    return see_pairs(call, call.steps.visible[..., s.keys.find_counterparts(TAKEN[taken](s, s.keys.rank))])


def take_own_columns(visible: np.ndarray, s: Spread) -> np.ndarray:
    """Each row has, for every block, the columns of its own rank."""
    places = [s.keys.find_counterparts(np.full_like(s.keys.rank, rank)) for rank in range(s.ranks)]
    columns = np.stack(places)[s.queries.rank]
    return np.take_along_axis(visible, np.broadcast_to(columns, visible.shape), axis=-1)


def read_locally(visible: np.ndarray, s: Spread) -> np.ndarray:
    return visible[..., s.queries.local, :][..., s.keys.local]


def keep_order(visible: np.ndarray, s: Spread) -> np.ndarray:
    """Keys stand rank by rank, and the mask's columns in the order of the whole."""
    return visible[..., np.argsort(np.lexsort((s.keys.local, s.keys.rank)))]


PAIRS: dict[str, Callable[[np.ndarray, Spread], np.ndarray]] = {
    "by the columns of its own part for every part": take_own_columns,
    "by positions within ranks": read_locally,
    "for its own part alone": lambda visible, s: visible | (s.hops != 0),
    "as if all ranks' keys stood in the order of ranks": keep_order,
}


def read_pairs(call: Call, s: Spread, read: str) -> AttentionSteps | None:
    return see_pairs(call, PAIRS[read](call.steps.visible, s))


# --- scores, softmax and values ---------------------------------------------------------------------------------------


def take_bias(call: Call, s: Spread, taken: str) -> AttentionSteps:
    columns = s.keys.find_counterparts(TAKEN[taken](s, s.keys.rank))
    return call.steps.read_elsewhere(bias=places_of(call.steps.bias)[..., columns])


def take_own_bias(call: Call, s: Spread) -> AttentionSteps:
    _, _, Q, K = call.steps.sizes
    bias = np.broadcast_to(places_of(call.steps.bias), (*call.steps.bias.shape[:2], Q, K))
    return call.steps.read_elsewhere(bias=take_own_columns(bias, s))


def take_values(call: Call, s: Spread, taken: str) -> AttentionSteps | None:
    moved = s.keys.find_counterparts(TAKEN[taken](s, s.keys.rank))
    assert call.steps.value is not None
    if np.array_equal(moved, np.arange(len(moved))):
        return None
    return call.steps.read_elsewhere(value=places_of(call.steps.value)[:, :, moved])


def add_to_own(call: Call, s: Spread) -> AttentionSteps:
    return call.steps.change(score=lambda steps, products: steps.cap(products) + steps.bias + np.log(2) * (s.hops == 0))


def scale_by_hops(call: Call, s: Spread) -> AttentionSteps:
    factor = call.steps.scale ** s.hops.astype(float)
    return call.steps.change(score=lambda steps, products: steps.cap(products * factor) + steps.bias)


def repeat_sinks(call: Call, s: Spread) -> AttentionSteps:
    return call.steps.change(sinks=call.steps.sinks + np.log(s.ranks))


def average_parts(call: Call, s: Spread, over: str) -> AttentionSteps:
    """Each part of the keys has a softmax of its own."""

    def weigh(steps: AttentionSteps, scores: np.ndarray) -> np.ndarray:
        weights, seen = np.zeros_like(scores), np.zeros((*scores.shape[:-1], 1))
        for rank in range(s.ranks):
            keys = s.keys.rank == rank
            part = np.where(keys, scores, -np.inf)
            largest = part.max(axis=-1, keepdims=True, initial=-np.inf)
            exponentials = np.where(
                steps.allowed_pairs & keys, np.exp(part - np.where(largest > -np.inf, largest, 0)), 0
            )
            total = exponentials.sum(axis=-1, keepdims=True)
            weights, seen = weights + exponentials / np.where(total, total, 1), seen + (total > 0)
        return weights / (s.ranks if over == "all ranks" else np.maximum(seen, 1))

    return call.steps.change(weigh=weigh)


def share_first(call: Call, s: Spread) -> Results:
    return {"output": call.right["output"][:, :, s.queries.find_counterparts(np.zeros_like(s.queries.rank))]}


# --- gradients --------------------------------------------------------------------------------------------------------

OF_KEYS = tuple(map(gradient_name, ("key", "value")))


def scale_gradients(call: Call, s: Spread) -> Results | None:
    return {name: call.right[name] / s.ranks for name in OF_KEYS if name in call.right}


def drop_foreign_gradients(call: Call, s: Spread) -> Results | None:
    """Keys and values have the gradients of their own rank's queries alone."""
    case, found = call.case, dict[str, np.ndarray]()
    if not case.cotangents or case.special:
        return None
    for rank in range(s.ranks):
        rows = (s.queries.rank == rank)[:, None]
        bars = {"output": np.where(rows, case.cotangents["output"].astype(float), 0)}
        gradients = call.steps.pull_back(bars, call.forward.weights)
        of_rank, keys = call.steps.sum_gradients(gradients, case.inputs), s.keys.rank == rank
        for name in OF_KEYS:
            if name in of_rank:
                found[name] = np.where(keys[:, None], of_rank[name], found.get(name, 0))
    return found


def use_own_keys(call: Call, s: Spread) -> Results | None:
    """A backward pass that has its own keys at every hop: of queries, where all parts are as long."""
    case = call.case
    if not case.cotangents or case.special or len({*s.keys.sizes}) > 1 or call.steps.softcap is not None:
        return None
    scores, found = call.gradients.scores, np.zeros_like(call.gradients.query)
    for rank in range(s.ranks):
        stale = s.keys.find_counterparts(np.full_like(s.keys.rank, rank))
        here = scores @ call.steps.keys[:, :, stale] * call.steps.scale
        found = np.where((s.queries.rank == rank)[:, None], here, found)
    return {gradient_name("query"): found}


# --- heads ------------------------------------------------------------------------------------------------------------


def deal_groups(call: Call, s: Spread) -> AttentionSteps | None:
    """Within a rank, query head i reads key head i % (G / R)."""
    _, H, _, _ = call.steps.sizes
    G = call.steps.key.shape[1]
    if H % s.ranks or G % s.ranks or H == G:
        return None
    heads, groups = H // s.ranks, G // s.ranks
    key_heads = np.arange(H) // heads * groups + np.arange(H) % heads % groups
    return None if np.array_equal(key_heads, call.steps.key_heads) else call.steps.change(key_heads=key_heads)


def reverse_heads(call: Call, s: Spread) -> AttentionSteps | None:
    """The query heads of each rank are read backwards."""
    _, H, _, _ = call.steps.sizes
    if H % s.ranks or s.ranks == H:
        return None
    order = np.arange(H).reshape(s.ranks, -1)[:, ::-1].reshape(-1)
    return call.steps.read_elsewhere(query=places_of(call.steps.query)[:, order])


MISTAKES = (
    RANKS.entry("keys-seen", "each rank sees {seen}", limit_to_sequence(see_keys), seen=(*SEEN,)),
    RANKS.entry("mask-columns", "a part of the keys has the mask of {taken}", limit_to_sequence(take_columns),
                rule="MASK-3", needs=("mask",), taken=(*TAKEN,)),
    RANKS.entry("mask-read", "each rank reads the mask {read}", limit_to_sequence(read_pairs),
                rule="MASK-3", needs=("mask",), read=(*PAIRS,)),
    RANKS.entry("bias-columns", "a part of the keys has the bias of {taken}", limit_to_sequence(take_bias),
                rule="ATT-3", needs=("bias",), taken=(*TAKEN,)),
    RANKS.entry("own-bias-columns", "each rank adds the bias of its own part to every part",
                limit_to_sequence(take_own_bias), rule="ATT-3", needs=("bias",)),
    RANKS.entry("values-behind", "values are those of {taken}, and keys are not", limit_to_sequence(take_values),
                taken=(*TAKEN,)),
    RANKS.entry("own-part-twice", "the own part of the keys counts twice", limit_to_sequence(add_to_own)),
    RANKS.entry("scale-at-every-hop", "the scale is applied once more at every hop", limit_to_sequence(scale_by_hops),
                rule="ATT-1"),
    RANKS.entry("sinks-repeated", "sinks count on every rank", limit_to_sequence(repeat_sinks), rule="ATT-5",
                needs=("sinks",)),
    RANKS.entry("parts-averaged", "parts of the keys are averaged over {over}, and not merged by log-sum-exps",
                limit_to_sequence(average_parts), over=("ranks that see a key", "all ranks")),
    RANKS.entry("first-output", "every rank returns the output of the first", limit_to_sequence(share_first)),
    RANKS.entry("gradients-averaged", "gradients of keys and values are averaged over ranks",
                limit_to_sequence(scale_gradients), rule="ATT-12", needs=("gradients",)),
    RANKS.entry("gradients-not-summed", "keys and values have no gradients of other ranks' queries",
                limit_to_sequence(drop_foreign_gradients), rule="ATT-12", needs=("gradients",)),
    RANKS.entry("stale-keys", "the backward pass has the own keys at every hop", limit_to_sequence(use_own_keys),
                rule="ATT-12", needs=("gradients",)),
    RANKS.entry("groups-dealt", "within a rank, query head i reads key head i modulo their number",
                limit_to_ranks(deal_groups, ("heads",)), rule="ATT-7"),
    RANKS.entry("heads-reversed", "the query heads of each rank are read backwards",
                limit_to_ranks(reverse_heads, ("heads",))),
)  # fmt: skip
CONTIGUOUS, ZIGZAG, HEADS = (Condition(features=(shard,)) for shard in ("sequence", "zigzag", "heads"))
PLANTED = (
    *(one.choose().limit(HEADS if one.id in ("ranks.groups-dealt", "ranks.heads-reversed") else CONTIGUOUS)
      for one in MISTAKES),
    *(MISTAKES[0].choose(seen=seen).limit(CONTIGUOUS) for seen in list(SEEN)[1:]),
    *(MISTAKES[2].choose(read=read).limit(ZIGZAG) for read in list(PAIRS)[1:]),
)  # fmt: skip
